/** @import { Grid, View } from "./geometry.js" */
import { context2d, pixelOf, rgb } from "../canvas.js";
import { CODES, DROPPED } from "./cells.js";
import { pixelEdges, pixelsOf } from "./geometry.js";

/** @typedef {{ codes: Uint8Array, tokens: number }} Cells */

/** The wall as pixels: a cell covers pixels, or where cells are smaller a pixel mixes the colours of its cells. */
export class WallPainter {
  canvas = new OffscreenCanvas(1, 1);
  image = new ImageData(1, 1);
  counts = new Int32Array(CODES);

  /**
   * Paint all tiles in view.
   * @param {Grid} grid
   * @param {View} view
   * @param {Cells} cells
   * @param {string[]} colours by code
   * @param {number} ratio device pixels in a canvas pixel
   */
  paint(grid, view, cells, colours, ratio) {
    const width = Math.max(1, Math.round(grid.width * ratio)), height = Math.max(1, Math.round(grid.height * ratio));
    if (this.image.width !== width || this.image.height !== height) {
      this.canvas = new OffscreenCanvas(width, height);
      this.image = new ImageData(width, height);
    }
    this.pixels = new Uint32Array(this.image.data.buffer).fill(0);
    this.grid = grid;
    this.view = view;
    this.cells = cells;
    this.words = colours.map(pixelOf);
    this.channels = colours.map(rgb);
    /** @type {Map<number, ReturnType<typeof pixelEdges>>} */
    this.columns = new Map();
    /** @type {Map<number, ReturnType<typeof pixelEdges>>} */
    this.rows = new Map();
    for (const head of grid.visibleHeads(view)) {
      const { layer, row } = grid.placeOf(head), box = grid.tileBox(head, view);
      if (!this.columns.has(layer)) {
        this.columns.set(layer, pixelEdges(grid.perLine, (box.x - grid.left) * ratio, box.width * ratio, width));
      }
      if (!this.rows.has(row)) {
        this.rows.set(row, pixelEdges(grid.lines, (box.y - grid.top) * ratio, box.height * ratio, height));
      }
      this.paintTile(head);
    }
    context2d(this.canvas).putImageData(this.image, 0, 0);
  }

  /**
   * Paint some cells again whose codes have changed.
   * @param {Iterable<number>} changed
   */
  repaint(changed) {
    const { grid, cells } = this;
    if (!grid || !cells) return;
    for (const cell of changed) {
      const head = Math.floor(cell / cells.tokens), position = cell % cells.tokens, { layer, row } = grid.placeOf(head);
      const columns = this.columns?.get(layer), rows = this.rows?.get(row);
      if (!columns || !rows) continue;
      for (const y of pixelsOf(rows, Math.floor(position / grid.perLine))) {
        for (const x of pixelsOf(columns, position % grid.perLine)) this.paintPixel(head, columns, rows, x, y);
      }
    }
    context2d(this.canvas).putImageData(this.image, 0, 0);
  }

  /** @param {number} head */
  paintTile(head) {
    const { layer, row } = /** @type {Grid} */ (this.grid).placeOf(head);
    const columns = this.columns?.get(layer), rows = this.rows?.get(row);
    if (!columns || !rows) return;
    for (let y = 0; y < rows.stop - rows.start; y++) {
      for (let x = 0; x < columns.stop - columns.start; x++) this.paintPixel(head, columns, rows, x, y);
    }
  }

  /**
   * @param {number} head
   * @param {ReturnType<typeof pixelEdges>} columns
   * @param {ReturnType<typeof pixelEdges>} rows
   * @param {number} x
   * @param {number} y
   */
  paintPixel(head, columns, rows, x, y) {
    const { pixels, words, counts } = this, { codes, tokens } = /** @type {Cells} */ (this.cells);
    const { perLine } = /** @type {Grid} */ (this.grid);
    if (!pixels || !words) return;
    const left = columns.edges[2 * x], right = columns.edges[2 * x + 1], top = rows.edges[2 * y], bottom = rows.edges[2 * y + 1];
    const at = (rows.start + y) * this.image.width + columns.start + x, start = head * tokens;
    if (right - left === 1 && bottom - top === 1) {
      const position = top * perLine + left;
      pixels[at] = position < tokens ? words[codes[start + position]] : 0;
      return;
    }
    counts.fill(0);
    for (let line = top; line < bottom; line++) {
      const stop = start + Math.min(tokens, line * perLine + right);
      for (let cell = start + line * perLine + left; cell < stop; cell++) counts[codes[cell]]++;
    }
    pixels[at] = this.mixed();
  }

  /**
   * The colour of a pixel with `counts` cells of each code. What is held is drawn stronger than its share (by the square
   * root), so that one kept token among many does not vanish.
   */
  mixed() {
    const { counts, channels, words } = this;
    if (!channels || !words) return 0;
    let held = 0, others = 0;
    for (let code = 0; code < DROPPED; code++) held += counts[code];
    for (let code = DROPPED; code < CODES; code++) others += counts[code];
    const all = held + others;
    if (!all) return 0;
    for (let code = 0; code < CODES; code++) if (counts[code] === all) return words[code];
    const strength = Math.sqrt(held / all);
    let colour = 255 << 24;
    for (let channel = 0; channel < 3; channel++) {
      let ofHeld = 0, ofOthers = 0;
      for (let code = 0; code < DROPPED; code++) ofHeld += counts[code] * channels[code][channel];
      for (let code = DROPPED; code < CODES; code++) ofOthers += counts[code] * channels[code][channel];
      const value = (held ? (strength * ofHeld) / held : 0) + (others ? ((1 - strength) * ofOthers) / others : 0);
      colour |= Math.round(value) << (8 * channel);
    }
    return colour >>> 0;
  }

  /**
   * Draw what is painted, moved and scaled if the view has changed since.
   * @param {CanvasRenderingContext2D} context
   * @param {View} view
   */
  draw(context, view) {
    const { grid, view: painted } = this;
    if (!grid || !painted) return;
    const factor = view.scale / painted.scale;
    context.save();
    context.beginPath();
    context.rect(grid.left, grid.top, grid.width, grid.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.canvas,
      grid.left + (painted.x - view.x) * view.scale,
      grid.top + (painted.y - view.y) * view.scale,
      grid.width * factor,
      grid.height * factor,
    );
    context.restore();
  }
}
