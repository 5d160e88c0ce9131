/** @import { Window } from "./geometry.js" */
import { pixelCanvas, sizeCanvas } from "../canvas.js";
import { axisTicks, colourLevel, colourTable } from "./geometry.js";

export const MARGIN = { left: 64, bottom: 44, top: 6, right: 6 };

/**
 * What is drawn; colours are CSS colours, outlines are (start, stop, pivot start, pivot stop) of merged spans.
 * @typedef {object} Scene
 * @property {OffscreenCanvas} tile
 * @property {Window} window of the tile
 * @property {Window} view the part in view
 * @property {Window[]} outlines
 * @property {{ x: number, y: number } | null} crosshair
 * @property {string} outlineColour
 * @property {string} ink
 * @property {string} quiet
 */

/**
 * The tile as an image of one pixel per cell.
 * @param {number} rows
 * @param {number} columns
 * @param {Int16Array} values
 * @param {string[]} scale
 */
export function paintTile(rows, columns, values, scale) {
  const colours = colourTable(scale);
  return pixelCanvas(columns, rows, (pixels) => {
    for (let cell = 0; cell < values.length; cell++) pixels[cell] = colours[colourLevel(values[cell])];
  });
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} side in pixels
 * @param {Scene} scene
 */
export function drawMap(canvas, side, scene) {
  const width = side + MARGIN.left + MARGIN.right, height = side + MARGIN.top + MARGIN.bottom;
  canvas.style.width = `${width}px`;
  const { context } = sizeCanvas(canvas, height, width);
  context.save();
  context.beginPath();
  context.rect(MARGIN.left, MARGIN.top, side, side);
  context.clip();
  context.translate(MARGIN.left, MARGIN.top);
  drawTile(context, side, scene);
  drawOutlines(context, side, scene);
  drawCrosshair(context, side, scene);
  context.restore();
  drawAxes(context, side, scene, getComputedStyle(canvas).fontFamily);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} side
 * @param {Scene} scene
 */
function drawTile(context, side, { tile, window: [r0, r1, c0, c1], view: [top, bottom, left, right] }) {
  const across = side / (right - left), down = side / (bottom - top);
  context.imageSmoothingEnabled = false;
  context.drawImage(tile, (c0 - left) * across, (r0 - top) * down, (c1 - c0) * across, (r1 - r0) * down);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} side
 * @param {Scene} scene
 */
function drawOutlines(context, side, { outlines, outlineColour, view: [top, bottom, left, right] }) {
  const across = side / (right - left), down = side / (bottom - top);
  context.strokeStyle = outlineColour;
  context.lineWidth = 1.5;
  /** @param {Window} box columns, then rows */
  const stroke = ([a, b, c, d]) => {
    context.strokeRect((a - left) * across, (c - top) * down, (b - a) * across, (d - c) * down);
  };
  for (const [a, b, c, d] of outlines) {
    stroke([a, b, c, d]);
    if (a !== c || b !== d) stroke([c, d, a, b]);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} side
 * @param {Scene} scene
 */
function drawCrosshair(context, side, { crosshair, ink }) {
  if (!crosshair) return;
  context.strokeStyle = ink;
  context.globalAlpha = 0.45;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, crosshair.y);
  context.lineTo(side, crosshair.y);
  context.moveTo(crosshair.x, 0);
  context.lineTo(crosshair.x, side);
  context.stroke();
  context.globalAlpha = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} side
 * @param {Scene} scene
 * @param {string} fontFamily
 */
function drawAxes(context, side, { view: [top, bottom, left, right], ink, quiet }, fontFamily) {
  const { left: x, top: y } = MARGIN;
  context.fillStyle = quiet;
  context.strokeStyle = quiet;
  context.font = `12px ${fontFamily}`;
  context.strokeRect(x, y, side, side);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of axisTicks(top, bottom)) {
    context.fillText(String(tick), x - 8, y + ((tick + 0.5 - top) / (bottom - top)) * side);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of axisTicks(left, right)) {
    context.fillText(String(tick), x + ((tick + 0.5 - left) / (right - left)) * side, y + side + 7);
  }
  context.fillStyle = ink;
  context.font = `13px ${fontFamily}`;
  context.fillText("token (position)", x + side / 2, y + side + 26);
  context.save();
  context.translate(13, y + side / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("token (position)", 0, -7);
  context.restore();
}
