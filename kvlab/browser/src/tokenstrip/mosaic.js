/** @import { Vector } from "../types.js" */
import { pixelCanvas, pixelOf, sizeCanvas } from "../canvas.js";
import { clampIndex } from "../steps.js";

const HEIGHT = 150, SINGLE_STEP_HEIGHT = 24;

/** The state of every token (downwards) at every step (to the right), with a line at the step in view. */
export class Mosaic {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} playhead
   */
  constructor(canvas, playhead) {
    this.canvas = canvas;
    this.playhead = playhead;
  }

  /**
   * @param {{ mosaic: { rows: number, columns: number }, codes: Vector }} image states, row by row
   * @param {string[]} colours of the states
   * @param {number} steps
   */
  draw({ mosaic: { rows, columns }, codes }, colours, steps) {
    if (!this.canvas.clientWidth) return;
    const { context, width, height } = sizeCanvas(this.canvas, steps > 1 ? HEIGHT : SINGLE_STEP_HEIGHT);
    const words = colours.map(pixelOf);
    const cells = pixelCanvas(columns, rows, (pixels) => {
      for (let cell = 0; cell < codes.length; cell++) pixels[cell] = words[codes[cell]];
    });
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, 0, 0, width, height);
  }

  /**
   * @param {number} index of the step in view
   * @param {number} steps
   */
  movePlayhead(index, steps) {
    this.playhead.style.left = `${(100 * (index + 0.5)) / steps}%`;
  }

  /**
   * The index of the step and the position of the token under the pointer.
   * @param {MouseEvent} event
   * @param {number} steps
   * @param {number} tokens
   */
  cellAt(event, steps, tokens) {
    const box = this.canvas.getBoundingClientRect();
    return {
      index: clampIndex(Math.floor(((event.clientX - box.left) / box.width) * steps), steps),
      position: clampIndex(Math.floor(((event.clientY - box.top) / box.height) * tokens), tokens),
    };
  }
}
