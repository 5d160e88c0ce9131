/* Places on the wall: layers across, KV heads down; each tile holds the text as lines of cells, read like a page. */

const MARGIN = { left: 34, top: 20, right: 2, bottom: 2 };
const LEAST_HEIGHT = 300, MOST_HEIGHT = 500;
const CELL_ASPECT = 2.5; // width over height of a cell: a word is wider than high
const LARGEST_CELL = 150; // pixels across at the largest scale

/** @typedef {{ x: number, y: number, scale: number }} View the wall's corner, in wall pixels, and its scale */
/** @typedef {{ x: number, y: number, width: number, height: number }} Box in canvas pixels */

export class Grid {
  /**
   * @param {number} layers
   * @param {number} heads of a layer
   * @param {number} tokens
   * @param {number} width of the canvas
   */
  constructor(layers, heads, tokens, width) {
    this.layers = layers;
    this.heads = heads;
    this.tokens = tokens;
    this.left = MARGIN.left;
    this.top = MARGIN.top;
    this.width = Math.max(1, width - MARGIN.left - MARGIN.right);
    this.pitchX = this.width / layers;
    this.height = Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, heads * this.pitchX));
    this.pitchY = this.height / heads;
    const gap = Math.min(6, Math.max(1, Math.min(this.pitchX, this.pitchY) * 0.06));
    this.tileWidth = this.pitchX - gap;
    this.tileHeight = this.pitchY - gap;
    this.perLine = Math.max(1, Math.round(Math.sqrt((tokens * this.tileWidth) / (this.tileHeight * CELL_ASPECT))));
    this.lines = Math.ceil(tokens / this.perLine);
  }

  get canvasHeight() {
    return this.height + MARGIN.top + MARGIN.bottom;
  }

  get largestScale() {
    return Math.max(1, LARGEST_CELL / (this.tileWidth / this.perLine));
  }

  /** @returns {View} */
  get whole() {
    return { x: 0, y: 0, scale: 1 };
  }

  /**
   * The view moved so that it lies within the wall.
   * @param {View} view
   */
  clamp({ x, y, scale }) {
    const bounded = Math.max(1, Math.min(this.largestScale, scale));
    const limit = (/** @type {number} */ at, /** @type {number} */ size) => Math.max(0, Math.min(size - size / bounded, at));
    return { x: limit(x, this.width), y: limit(y, this.height), scale: bounded };
  }

  /**
   * The view scaled by `factor` around a canvas point.
   * @param {View} view
   * @param {number} factor
   * @param {number} x
   * @param {number} y
   */
  zoomed(view, factor, x, y) {
    const scale = Math.max(1, Math.min(this.largestScale, view.scale * factor));
    const atX = view.x + (x - this.left) / view.scale, atY = view.y + (y - this.top) / view.scale;
    return this.clamp({ x: atX - (x - this.left) / scale, y: atY - (y - this.top) / scale, scale });
  }

  /**
   * The view that shows one tile as large as possible.
   * @param {number} head index over all layers
   */
  viewOf(head) {
    const { layer, row } = this.placeOf(head), scale = Math.min(this.width / this.pitchX, this.height / this.pitchY);
    const x = (layer + 0.5) * this.pitchX - this.width / scale / 2, y = (row + 0.5) * this.pitchY - this.height / scale / 2;
    return this.clamp({ x, y, scale });
  }

  /** @param {number} head */
  placeOf(head) {
    return { layer: Math.floor(head / this.heads), row: head % this.heads };
  }

  /**
   * @param {number} head
   * @param {View} view
   * @returns {Box}
   */
  tileBox(head, { x, y, scale }) {
    const { layer, row } = this.placeOf(head);
    return {
      x: this.left + (layer * this.pitchX - x) * scale,
      y: this.top + (row * this.pitchY - y) * scale,
      width: this.tileWidth * scale,
      height: this.tileHeight * scale,
    };
  }

  /**
   * @param {number} head
   * @param {number} position
   * @param {View} view
   * @returns {Box}
   */
  cellBox(head, position, view) {
    const tile = this.tileBox(head, view), width = tile.width / this.perLine, height = tile.height / this.lines;
    return {
      x: tile.x + (position % this.perLine) * width,
      y: tile.y + Math.floor(position / this.perLine) * height,
      width,
      height,
    };
  }

  /**
   * Heads whose tiles are in view.
   * @param {View} view
   */
  visibleHeads(view) {
    const range = (/** @type {number} */ start, /** @type {number} */ size, /** @type {number} */ pitch, /** @type {number} */ count) => {
      return [Math.floor(start / pitch), Math.min(count - 1, Math.floor((start + size / view.scale - 1e-6) / pitch))];
    };
    const [firstLayer, lastLayer] = range(view.x, this.width, this.pitchX, this.layers);
    const [firstRow, lastRow] = range(view.y, this.height, this.pitchY, this.heads);
    const heads = [];
    for (let layer = firstLayer; layer <= lastLayer; layer++) {
      for (let row = firstRow; row <= lastRow; row++) heads.push(layer * this.heads + row);
    }
    return heads;
  }

  /**
   * The head and position under a canvas point; position is -1 beyond the text, null outside all tiles.
   * @param {number} x
   * @param {number} y
   * @param {View} view
   */
  cellAt(x, y, view) {
    const atX = (x - this.left) / view.scale + view.x, atY = (y - this.top) / view.scale + view.y;
    if (x < this.left || y < this.top || atX >= this.width || atY >= this.height) return null;
    const layer = Math.floor(atX / this.pitchX), row = Math.floor(atY / this.pitchY);
    const inX = atX - layer * this.pitchX, inY = atY - row * this.pitchY;
    if (inX >= this.tileWidth || inY >= this.tileHeight) return null;
    const column = Math.floor((inX / this.tileWidth) * this.perLine), line = Math.floor((inY / this.tileHeight) * this.lines);
    const position = line * this.perLine + column;
    return { head: layer * this.heads + row, position: position < this.tokens ? position : -1 };
  }
}

/**
 * The items that each pixel covers, when `count` items reach over `size` pixels from `from` on: pixel `start + k` covers
 * items `edges[2 * k]` up to before `edges[2 * k + 1]`, at least one. Only pixels 0 to `limit` exist.
 * @param {number} count
 * @param {number} from
 * @param {number} size
 * @param {number} limit
 */
export function pixelEdges(count, from, size, limit) {
  const start = Math.max(0, Math.round(from)), stop = Math.max(start, Math.min(limit, Math.round(from + size)));
  const edges = new Int32Array(2 * (stop - start)), perPixel = count / size;
  for (let pixel = start; pixel < stop; pixel++) {
    const first = Math.max(0, Math.min(count - 1, Math.floor((pixel - from) * perPixel)));
    const next = Math.min(count, Math.floor((pixel + 1 - from) * perPixel));
    edges[2 * (pixel - start)] = first;
    edges[2 * (pixel - start) + 1] = Math.max(first + 1, next);
  }
  return { start, stop, edges, from, pitch: size / count };
}

/**
 * The pixels that cover an item, as offsets from `start`.
 * @param {ReturnType<typeof pixelEdges>} axis
 * @param {number} item
 */
export function pixelsOf({ start, stop, edges, from, pitch }, item) {
  const near = Math.floor(from + item * pitch) - 1 - start, far = Math.ceil(from + (item + 1) * pitch) + 1 - start;
  const pixels = [];
  for (let pixel = Math.max(0, near); pixel <= Math.min(stop - start - 1, far); pixel++) {
    if (edges[2 * pixel] <= item && item < edges[2 * pixel + 1]) pixels.push(pixel);
  }
  return pixels;
}
