/** @import { Box, Grid, View } from "./geometry.js" */
/* What is drawn over the wall's pixels: axes, words, facts, the most read tokens, the head in focus, the selection. */

const TEXT_WIDTH = 30, TEXT_HEIGHT = 12; // smallest cell that shows its word, in pixels
const CHARACTER = 6.6; // pixels

/**
 * @typedef {object} Marks
 * @property {Grid} grid
 * @property {View} view
 * @property {string[]} texts
 * @property {number[]} layers
 * @property {[number, number][]} facts first and last position of each fact
 * @property {{ head: number, position: number, mass: number }[]} reads
 * @property {number | null} focus head in focus
 * @property {number | null} token position that is marked in every head
 * @property {number[]} selection heads
 * @property {string} ink
 * @property {string} quiet
 * @property {string} paper
 * @property {string} factColour
 * @property {string} focusColour
 * @property {(cell: number) => string} wordColour
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {string} fontFamily
 */
export function drawMarks(context, marks, fontFamily) {
  const { grid, view } = marks, heads = grid.visibleHeads(view);
  context.save();
  context.beginPath();
  context.rect(grid.left, grid.top, grid.width, grid.height);
  context.clip();
  drawWords(context, marks, heads, fontFamily);
  drawFacts(context, marks, heads);
  drawReads(context, marks);
  drawToken(context, marks, heads);
  drawHeads(context, marks);
  context.restore();
  drawAxes(context, marks, fontFamily);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {number[]} heads
 * @param {string} fontFamily
 */
function drawWords(context, { grid, view, texts, paper, wordColour }, heads, fontFamily) {
  const cell = grid.cellBox(heads[0] ?? 0, 0, view);
  if (cell.width < TEXT_WIDTH || cell.height < TEXT_HEIGHT) return;
  const most = Math.floor((cell.width - 4) / CHARACTER), size = Math.min(13, cell.height - 2);
  context.font = `${size}px ${fontFamily}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const head of heads) {
    for (const position of positionsInView(grid, head, view)) {
      const box = grid.cellBox(head, position, view);
      context.strokeStyle = paper;
      context.lineWidth = 1;
      context.strokeRect(box.x, box.y, box.width, box.height);
      context.fillStyle = wordColour(head * grid.tokens + position);
      context.fillText(shortened(texts[position] ?? "", most), box.x + 3, box.y + box.height / 2 + 0.5);
    }
  }
}

/**
 * @param {Grid} grid
 * @param {number} head
 * @param {View} view
 */
function* positionsInView(grid, head, view) {
  const tile = grid.tileBox(head, view), width = tile.width / grid.perLine, height = tile.height / grid.lines;
  const first = Math.max(0, Math.floor((grid.top - tile.y) / height)), last = Math.min(grid.lines - 1, Math.floor((grid.top + grid.height - tile.y) / height));
  const left = Math.max(0, Math.floor((grid.left - tile.x) / width)), right = Math.min(grid.perLine - 1, Math.floor((grid.left + grid.width - tile.x) / width));
  for (let line = first; line <= last; line++) {
    for (let column = left; column <= right; column++) {
      const position = line * grid.perLine + column;
      if (position < grid.tokens) yield position;
    }
  }
}

/**
 * @param {string} text
 * @param {number} most
 */
function shortened(text, most) {
  const visible = text.replaceAll("\n", "⏎").trim() || "␣";
  return visible.length > most ? `${visible.slice(0, Math.max(1, most - 1))}…` : visible;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {number[]} heads
 */
function drawFacts(context, { grid, view, facts, factColour, paper }, heads) {
  for (const head of heads) {
    for (const [first, last] of facts) {
      for (let from = first; from <= last; ) {
        const to = Math.min(last, from - (from % grid.perLine) + grid.perLine - 1); // the rest of the fact in this line
        strokeAround(context, span(grid.cellBox(head, from, view), grid.cellBox(head, to, view)), factColour, paper);
        from = to + 1;
      }
    }
  }
}

/**
 * @param {Box} first
 * @param {Box} last
 * @returns {Box}
 */
const span = (first, last) => ({ ...first, width: last.x + last.width - first.x });

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Box} box
 * @param {string} colour
 * @param {string} paper
 */
function strokeAround(context, box, colour, paper) {
  const width = Math.max(3, box.width), height = Math.max(3, box.height);
  const x = box.x + box.width / 2 - width / 2, y = box.y + box.height / 2 - height / 2;
  context.strokeStyle = paper;
  context.lineWidth = 3;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 */
function drawReads(context, { grid, view, reads, ink, paper }) {
  const side = Math.min(grid.tileWidth, grid.tileHeight) * view.scale, largest = Math.max(1, Math.min(5, side / 10));
  for (const { head, position, mass } of reads) {
    const box = grid.cellBox(head, position, view), radius = Math.max(0.8, largest * Math.sqrt(mass));
    const x = Math.max(box.x + radius, box.x + box.width - 2 - radius), y = box.y + box.height / 2;
    context.beginPath();
    context.arc(box.width > TEXT_WIDTH ? x : box.x + box.width / 2, y, radius, 0, 2 * Math.PI);
    context.fillStyle = ink;
    context.fill();
    if (radius < 1.5) continue;
    context.strokeStyle = paper;
    context.lineWidth = 0.8;
    context.stroke();
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {number[]} heads
 */
function drawToken(context, { grid, view, token, ink, paper }, heads) {
  if (token === null || token >= grid.tokens) return;
  for (const head of heads) strokeAround(context, grid.cellBox(head, token, view), ink, paper);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 */
function drawHeads(context, { grid, view, focus, selection, focusColour, ink }) {
  const stroke = (/** @type {number} */ head, /** @type {string} */ colour, /** @type {number} */ width) => {
    const box = grid.tileBox(head, view);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(box.x - 1, box.y - 1, box.width + 2, box.height + 2);
  };
  for (const head of selection) stroke(head, ink, 1.5);
  if (focus !== null) stroke(focus, focusColour, 2.5);
}

/**
 * Numbers of layers above the wall and of KV heads beside it, as many as fit.
 * @param {CanvasRenderingContext2D} context
 * @param {Marks} marks
 * @param {string} fontFamily
 */
function drawAxes(context, { grid, view, layers, quiet }, fontFamily) {
  context.font = `11px ${fontFamily}`;
  context.fillStyle = quiet;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText("layer", 0, grid.top / 2);
  context.textAlign = "center";
  const everyLayer = Math.max(1, Math.ceil(22 / (grid.pitchX * view.scale)));
  for (let layer = 0; layer < grid.layers; layer += everyLayer) {
    const box = grid.tileBox(layer * grid.heads, view), x = middleInView(box.x, box.width, grid.left, grid.width);
    if (x !== null) context.fillText(String(layers[layer]), x, grid.top / 2);
  }
  const everyHead = Math.max(1, Math.ceil(14 / (grid.pitchY * view.scale)));
  context.textAlign = "right";
  for (let row = 0; row < grid.heads; row += everyHead) {
    const box = grid.tileBox(row, view), y = middleInView(box.y, box.height, grid.top, grid.height);
    if (y !== null) context.fillText(String(row), grid.left - 6, y);
  }
  context.save();
  context.translate(7, grid.top + grid.height / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.fillText("KV head", 0, 0);
  context.restore();
}

/**
 * The middle of the part of a span that is in view; null if hardly any of it is.
 * @param {number} start
 * @param {number} size
 * @param {number} from
 * @param {number} reach
 */
function middleInView(start, size, from, reach) {
  const first = Math.max(start, from), last = Math.min(start + size, from + reach);
  return last - first < Math.min(size, 12) ? null : (first + last) / 2;
}
