/**
 * Set a canvas's size in CSS pixels, which drawing then uses too.
 * @param {HTMLCanvasElement} canvas
 * @param {number} height
 * @param {number} [width] by default that of the canvas's element
 */
export function sizeCanvas(canvas, height, width = canvas.clientWidth) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = context2d(canvas);
  context.scale(ratio, ratio);
  return { context, width, height };
}

/**
 * @template {HTMLCanvasElement | OffscreenCanvas} Canvas
 * @param {Canvas} canvas
 */
export function context2d(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no 2D canvas");
  return /** @type {Canvas extends HTMLCanvasElement ? CanvasRenderingContext2D : OffscreenCanvasRenderingContext2D} */ (context);
}

/**
 * Red, green and blue of a colour such as `#1f77b4`.
 * @param {string} hex
 */
export const rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));

/**
 * The four bytes of an opaque pixel as one number, in the machine's byte order.
 * @param {string} hex
 */
export const pixelOf = (hex) => new Uint32Array(Uint8Array.of(...rgb(hex), 255).buffer)[0];

/**
 * An off-screen canvas of one pixel per number.
 * @param {number} width
 * @param {number} height
 * @param {(pixels: Uint32Array) => void} fill
 */
export function pixelCanvas(width, height, fill) {
  const image = new ImageData(width, height), canvas = new OffscreenCanvas(width, height);
  fill(new Uint32Array(image.data.buffer));
  context2d(canvas).putImageData(image, 0, 0);
  return canvas;
}
