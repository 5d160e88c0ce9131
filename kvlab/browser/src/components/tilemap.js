/** @import { Component } from "../types.js" */
/** @import { Window } from "../tilemap/geometry.js" */
import { createElement, find, Listeners } from "../dom.js";
import { mount } from "../mount.js";
import { blockAt, blockName, decodeValues, wholeTokens, windowAt, zoomed } from "../tilemap/geometry.js";
import { drawMap, MARGIN, paintTile } from "../tilemap/painter.js";

const REST_MS = 70; // a wheel or a drag continues: the tile is requested when it rests
const HINT = "Hover for the tokens and the value; wheel to zoom, drag to move, double-click for the whole text.";

/**
 * One window of block means (or maxima, or single pairs), as app/similarity.py sends it.
 * @typedef {object} Data
 * @property {string} identity
 * @property {number} tokens
 * @property {Window} window
 * @property {number} rows
 * @property {number} columns
 * @property {string} values
 * @property {number[]} rowEdges
 * @property {number[]} columnEdges
 * @property {string[]} rowTexts
 * @property {string[]} columnTexts
 * @property {Window[]} outlines
 * @property {string} outlineColour
 * @property {string[]} scale
 * @property {string} ink
 * @property {string} quiet
 */

/**
 * A similarity map that zooms: draws the tile it has at once and requests the sharp one from the server.
 */
class TileMap {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {string | null} */
  requested = null; // window that the server has not answered yet
  isImmediate = false;
  /** @type {{ x: number, y: number } | null} */
  pointer = null;
  /** @type {{ x: number, y: number, view: Window } | null} */
  drag = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer;

  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.root = find(component.parentElement, ".kv-map");
    this.canvas = /** @type {HTMLCanvasElement} */ (find(this.root, "canvas"));
    this.detail = find(this.root, ".detail");
    this.data = data;
    this.view = data.window;
    this.load(data);
    const { canvas, listeners } = this;
    listeners.listen(canvas, "wheel", (event) => this.onWheel(event), { passive: false });
    listeners.listen(canvas, "pointerdown", (event) => this.startDrag(event));
    listeners.listen(canvas, "pointermove", (event) => this.onMove(event));
    listeners.listen(canvas, "pointerup", (event) => this.endDrag(event));
    listeners.listen(canvas, "pointerleave", () => {
      this.pointer = null;
      this.draw();
      this.showHint();
    });
    listeners.listen(canvas, "dblclick", () => this.press("whole"));
    listeners.listen(canvas, "keydown", (event) => this.onKey(event));
    for (const button of this.root.querySelectorAll("button")) {
      listeners.listen(button, "click", () => this.press(button.dataset.act));
    }
    listeners.onResize(this.root, () => this.draw());
  }

  dispose() {
    clearTimeout(this.timer);
    this.listeners.dispose();
  }

  /** @param {Data} data */
  load(data) {
    this.data = data;
    this.values = decodeValues(data.values);
    this.tile = paintTile(data.rows, data.columns, this.values, data.scale);
  }

  /** @param {Data} data */
  refresh(data) {
    if (data !== this.data) this.load(data);
    // A tile that answers an older request must not move the window back while the user moves it.
    if (!this.requested || data.identity !== this.identity || this.requested === String(data.window)) {
      this.view = data.window;
      this.requested = null;
    }
    this.identity = data.identity;
    find(this.root, ".ramp").style.background = `linear-gradient(to right, ${data.scale.join(", ")})`;
    this.root.dataset.window = data.window.join(",");
    this.root.dataset.identity = data.identity;
    this.draw();
    this.showHint();
  }

  get side() {
    return Math.max(240, Math.min(this.root.clientWidth - MARGIN.left - MARGIN.right, 760));
  }

  draw() {
    if (!this.root.clientWidth || !this.tile) return;
    const crosshair = this.drag ? null : this.pointer;
    drawMap(this.canvas, this.side, { ...this.data, tile: this.tile, view: this.view, crosshair });
  }

  /** @param {MouseEvent} event */
  place(event) {
    const box = this.canvas.getBoundingClientRect(), { side } = this;
    const x = event.clientX - box.left - MARGIN.left, y = event.clientY - box.top - MARGIN.top;
    return { x, y, side, isInside: x >= 0 && y >= 0 && x < side && y < side };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    const { x, y, side, isInside } = this.place(event);
    if (this.drag) {
      const [top, bottom, left] = this.drag.view, span = bottom - top;
      this.move(top - ((y - this.drag.y) / side) * span, left - ((x - this.drag.x) / side) * span, span);
      return;
    }
    this.pointer = isInside ? { x, y } : null;
    this.draw();
    const [top, bottom, left, right] = this.view;
    if (isInside) this.showValue(top + (y / side) * (bottom - top), left + (x / side) * (right - left));
    else this.showHint();
  }

  /**
   * @param {number} row
   * @param {number} column
   */
  showValue(row, column) {
    const { rowEdges, columnEdges, rowTexts, columnTexts, columns, window: [r0, r1, c0, c1] } = this.data;
    if (!this.values || row < r0 || row >= r1 || column < c0 || column >= c1) {
      this.showHint();
      return;
    }
    const i = blockAt(rowEdges, row), j = blockAt(columnEdges, column), cosine = this.values[i * columns + j] / 32767;
    this.detail.replaceChildren(
      createElement("strong", "", `cosine ${cosine.toFixed(4)}`),
      createElement("span", "", `${blockName(rowEdges, rowTexts, i)} with ${blockName(columnEdges, columnTexts, j)}`),
    );
  }

  showHint() {
    this.detail.replaceChildren(createElement("span", "", HINT));
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    const { x, y, side } = this.place(event);
    if (x < 0 || y < 0 || x > side || y > side) return;
    event.preventDefault();
    this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), x / side, y / side);
  }

  /** @param {number} factor */
  zoom(factor, x = 0.5, y = 0.5) {
    this.show(zoomed(this.view, factor, x, y, this.data.tokens));
  }

  /**
   * @param {number} top
   * @param {number} left
   * @param {number} span
   */
  move(top, left, span) {
    this.show(windowAt(top, left, span, this.data.tokens));
  }

  /** @param {Window} view */
  show(view) {
    this.view = view;
    this.requested = "moving";
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(), this.isImmediate ? 0 : REST_MS);
    this.isImmediate = false;
  }

  request() {
    const wanted = wholeTokens(this.view, this.data.tokens);
    if (String(wanted) === String(this.data.window)) {
      this.requested = null;
      this.view = wanted;
      this.draw();
      return;
    }
    this.requested = String(wanted);
    this.component.setStateValue("window", wanted);
  }

  /** @param {PointerEvent} event */
  startDrag(event) {
    const { x, y } = this.place(event);
    this.drag = { x, y, view: this.view };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragging");
  }

  /** @param {PointerEvent} event */
  endDrag(event) {
    this.drag = null;
    this.canvas.classList.remove("dragging");
    this.canvas.releasePointerCapture(event.pointerId);
  }

  /** @param {string | undefined} action */
  press(action) {
    const [top, bottom] = this.view;
    this.isImmediate = true;
    if (action === "whole") this.move(0, 0, this.data.tokens);
    else if (action === "diagonal") this.move(top, top, bottom - top);
    else this.zoom(action === "in" ? 0.5 : 2);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const [top, bottom, left] = this.view, span = bottom - top, by = span / 8;
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.move(0, 0, this.data.tokens),
      ArrowUp: () => this.move(top - by, left, span),
      ArrowDown: () => this.move(top + by, left, span),
      ArrowLeft: () => this.move(top, left - by, span),
      ArrowRight: () => this.move(top, left + by, span),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    this.isImmediate = !event.repeat;
    action();
  }
}

export default mount(TileMap);
