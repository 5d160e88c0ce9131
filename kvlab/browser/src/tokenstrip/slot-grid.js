import { context2d, pixelCanvas, pixelOf, sizeCanvas } from "../canvas.js";

const MAX_HEIGHT = 400, MAX_CELL = 22, MIN_CELL = 3, MIN_VOTES_CELL = 14;

/**
 * What a grid shows. `key` changes with everything that changes the cells.
 * @typedef {object} Slots
 * @property {string} key
 * @property {number[]} slots positions, one cell each
 * @property {Uint8Array} states of all tokens
 * @property {() => Int32Array} votes of all tokens
 * @property {string[]} colours of the states
 * @property {string} paper
 * @property {string} ink
 */

/**
 * Cells as large as fit into the height: their `size` with the gap, their `side` without it, and the number `across`.
 * @param {number} count
 * @param {number} width in pixels
 */
export function gridLayout(count, width) {
  let size = MAX_CELL;
  while (size > MIN_CELL && Math.ceil(count / Math.floor(width / size)) * size > MAX_HEIGHT) size--;
  const across = Math.max(1, Math.floor(width / size)), gap = size > 6 ? 2 : size > 4 ? 1 : 0;
  return { size, side: size - gap, across, height: Math.max(size, Math.ceil(count / across) * size) };
}

/** The slots of a head as a grid; numbers are votes. */
export class SlotGrid {
  /** @type {Slots | null} */
  content = null;
  /** @type {number | null} */
  lit = null;
  paintedKey = "";
  layout = gridLayout(0, 0);
  width = 0;
  /** @type {OffscreenCanvas | null} */
  cells = null;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
  }

  /** Draw the content with the slot `lit` outlined. Cells are painted only when they changed, so that hovering is fast. */
  draw() {
    const width = this.canvas.clientWidth;
    if (!this.content || !width) return;
    const key = `${width}/${window.devicePixelRatio}/${this.content.key}`;
    if (key !== this.paintedKey || !this.cells) this.cells = this.paint(this.content, width);
    this.paintedKey = key;
    this.drawCells(this.content, this.cells);
  }

  /**
   * @param {Slots} content
   * @param {number} width
   */
  paint(content, width) {
    this.layout = gridLayout(content.slots.length, width);
    this.width = width;
    const { canvas } = this, { size, height } = this.layout;
    sizeCanvas(canvas, height);
    const cells = pixelCanvas(canvas.width, canvas.height, (pixels) => this.paintCells(pixels, content));
    const context = context2d(cells);
    context.scale(canvas.width / width, canvas.height / height);
    if (size >= MIN_VOTES_CELL) this.writeVotes(context, content);
    return cells;
  }

  /**
   * Pixel by pixel: a hundred thousand calls of `fillRect` take a tenth of a second.
   * @param {Uint32Array} pixels
   * @param {Slots} content
   */
  paintCells(pixels, { slots, states, colours }) {
    const { size, side, across, height } = this.layout, width = this.canvas.width, words = colours.map(pixelOf);
    const ratioX = width / this.width, ratioY = this.canvas.height / height;
    for (let first = 0; first < slots.length; first += across) {
      const y = (first / across) * size, top = Math.round(y * ratioY) * width, bottom = Math.round((y + side) * ratioY) * width;
      const stop = Math.min(across, slots.length - first);
      for (let column = 0; column < stop; column++) {
        const x = column * size, colour = words[states[slots[first + column]]];
        pixels.fill(colour, top + Math.round(x * ratioX), top + Math.round((x + side) * ratioX));
      }
      for (let row = top + width; row < bottom; row += width) pixels.copyWithin(row, top, top + width);
    }
  }

  /**
   * @param {OffscreenCanvasRenderingContext2D} context
   * @param {Slots} content
   */
  writeVotes(context, { slots, votes, paper }) {
    const { size, side } = this.layout, counts = votes();
    context.fillStyle = paper;
    context.font = `600 ${Math.min(10, size - 8)}px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    slots.forEach((slot, index) => {
      const [x, y] = this.corner(index), count = counts[slot];
      if (count > 1) context.fillText(count > 99 ? "99+" : String(count), x + side / 2, y + side / 2 + 0.5);
    });
  }

  /**
   * @param {Slots} content
   * @param {OffscreenCanvas} cells
   */
  drawCells({ slots, ink }, cells) {
    const context = context2d(this.canvas), { side, height } = this.layout;
    context.clearRect(0, 0, this.width, height);
    context.drawImage(cells, 0, 0, this.width, height);
    const index = this.lit === null ? -1 : slots.indexOf(this.lit);
    if (index < 0) return;
    const [x, y] = this.corner(index);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }

  /** @param {number} index */
  corner(index) {
    const { size, across } = this.layout;
    return [(index % across) * size, Math.floor(index / across) * size];
  }

  /**
   * The slot under the pointer, or null.
   * @param {MouseEvent} event
   */
  slotAt(event) {
    if (!this.content || !this.cells) return null;
    const box = this.canvas.getBoundingClientRect(), { size, across } = this.layout;
    const column = Math.floor((event.clientX - box.left) / size), row = Math.floor((event.clientY - box.top) / size);
    return column < across ? (this.content.slots[row * across + column] ?? null) : null;
  }
}
