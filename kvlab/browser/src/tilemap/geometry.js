/** @import { Vector } from "../types.js" */
import { rgb } from "../canvas.js";

const MIN_SPAN = 8; // tokens along a side of the window

/**
 * A square part of the map: first row, end of rows, first column, end of columns.
 * @typedef {[number, number, number, number]} Window
 */

/**
 * Cosines as 16-bit integers, 32767 for one.
 * @param {string} base64
 */
export function decodeValues(base64) {
  const characters = atob(base64), bytes = new Uint8Array(characters.length);
  for (let at = 0; at < characters.length; at++) bytes[at] = characters.charCodeAt(at);
  return new Int16Array(bytes.buffer);
}

/**
 * 257 colours from -1 to 1 as pixels, interpolated between the stops.
 * @param {string[]} stops
 */
export function colourTable(stops) {
  const colours = stops.map(rgb);
  const bytes = new Uint8ClampedArray(257 * 4);
  for (let level = 0; level <= 256; level++) {
    const at = (level / 256) * (colours.length - 1), low = Math.min(colours.length - 2, Math.floor(at));
    const [from, to] = [colours[low], colours[low + 1]];
    for (let channel = 0; channel < 3; channel++) {
      bytes[4 * level + channel] = from[channel] + (to[channel] - from[channel]) * (at - low);
    }
    bytes[4 * level + 3] = 255;
  }
  return new Uint32Array(bytes.buffer);
}

/**
 * The entry of `colourTable` for a value of `decodeValues`.
 * @param {number} value
 */
export const colourLevel = (value) => (value + 32895) >> 8;

/**
 * Round positions for about six ticks between `from` and `to`.
 * @param {number} from
 * @param {number} to
 */
export function axisTicks(from, to) {
  const rough = (to - from) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10) * power);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at < to; at += step) ticks.push(at);
  return ticks;
}

/**
 * The block that holds a position; block i begins at `edges[i]`.
 * @param {Vector} edges
 * @param {number} position
 */
export function blockAt(edges, position) {
  let low = 0, high = edges.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= position) low = middle;
    else high = middle;
  }
  return low;
}

/**
 * @param {number[]} edges
 * @param {string[]} texts
 * @param {number} block
 */
export function blockName(edges, texts, block) {
  const first = edges[block], last = edges[block + 1] - 1;
  return `${last > first ? `tokens ${first} to ${last}` : `token ${first}`} “${texts[block]}”`;
}

/**
 * A square window moved into the text.
 * @param {number} top
 * @param {number} left
 * @param {number} span
 * @param {number} tokens
 * @returns {Window}
 */
export function windowAt(top, left, span, tokens) {
  const limit = (/** @type {number} */ start) => Math.max(0, Math.min(tokens - span, start));
  return [limit(top), limit(top) + span, limit(left), limit(left) + span];
}

/**
 * The window scaled by `factor` around a point, whose coordinates are shares of its sides.
 * @param {Window} view
 * @param {number} factor
 * @param {number} x
 * @param {number} y
 * @param {number} tokens
 */
export function zoomed([top, bottom, left, right], factor, x, y, tokens) {
  const span = Math.max(Math.min(MIN_SPAN, tokens), Math.min(tokens, (bottom - top) * factor));
  return windowAt(top + y * (bottom - top - span), left + x * (right - left - span), span, tokens);
}

/**
 * The window in whole tokens, as the server computes it.
 * @param {Window} view
 * @param {number} tokens
 * @returns {Window}
 */
export function wholeTokens(view, tokens) {
  const [top, bottom, left] = view.map(Math.round), span = bottom - top, start = Math.min(left, tokens - span);
  return [top, bottom, start, start + span];
}
