/** @import { Component } from "../types.js" */
/** @import { WallData } from "./cells.js" */
/** @import { View } from "./geometry.js" */
import { rgb, sizeCanvas } from "../canvas.js";
import { createElement, find, findPart, Listeners } from "../dom.js";
import { StepBar } from "../step-bar.js";
import { SteppedView } from "../stepped-view.js";
import { formatCount } from "../text.js";
import { changedAt, CODES, countCodes, DifferenceCells, RunCells, UNSEEN } from "./cells.js";
import { Grid } from "./geometry.js";
import { drawMarks } from "./marks.js";
import { WallPainter } from "./painter.js";

const SHARP_CELLS = 4e6; // walls with more visible cells are painted sharp when the view rests
const REST_MS = 90, CLICK_PIXELS = 4;
const HINT = "Hover for a token and its head; click puts the head into focus. Click the wall, then wheel to zoom; drag to move; shift and drag to select heads.";

/**
 * A run's wall at a step, as `wall_content` of kvlab/views/wall.py sends it. With `other` it is the difference of two runs.
 * @typedef {object} Data
 * @property {string} identity
 * @property {WallData} wall
 * @property {WallData} [other]
 * @property {string[]} texts
 * @property {number[]} layers
 * @property {number} heads of a layer
 * @property {number[]} steps
 * @property {number[]} eventSteps
 * @property {number} step
 * @property {string} why
 * @property {[number, number] | null} focus layer and KV head
 * @property {number | null} token
 * @property {[number, number][]} facts
 * @property {number | null} readsStep step of the reads
 * @property {number} readsPerHead
 * @property {Int32Array} readPositions the most read tokens of each head, -1 for none
 * @property {Float32Array} readMasses
 * @property {string[]} colours by code
 * @property {string[]} labels by code
 * @property {string[]} meanings by code
 * @property {string} ink
 * @property {string} quiet
 * @property {string} paper
 * @property {string} factColour
 * @property {string} focusColour
 */

/** All heads of a run at once: which tokens each keeps at a step. */
export class CacheWall extends SteppedView {
  listeners = new Listeners();
  painter = new WallPainter();
  /** @type {string | undefined} */
  identity;
  /** @type {View} */
  view = { x: 0, y: 0, scale: 1 };
  /** @type {{ head: number, position: number } | null} */
  pointed = null;
  /** @type {number[]} */
  selection = [];
  /** @type {{ x: number, y: number, view: View, selects: boolean, moved: boolean } | null} */
  drag = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  restTimer;
  frame = 0;
  isStale = true; // what is painted differs from the view
  showsReads = true;

  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    super(component);
    this.data = data;
    this.root = find(component.parentElement, ".kv-wall");
    this.canvas = /** @type {HTMLCanvasElement} */ (findPart(this.root, "canvas"));
    this.detail = findPart(this.root, "detail");
    this.cells = this.createCells();
    this.grid = this.createGrid();
    this.bar = new StepBar(this);
    this.listen();
  }

  get steps() {
    return this.data.steps;
  }

  get events() {
    return this.data.eventSteps;
  }

  get stepBar() {
    return this.bar;
  }

  get focus() {
    const { focus, layers, heads } = this.data, layer = focus ? layers.indexOf(focus[0]) : -1;
    return focus && layer >= 0 ? layer * heads + focus[1] : null;
  }

  listen() {
    const { canvas, listeners } = this;
    listeners.listen(canvas, "wheel", (event) => this.onWheel(event), { passive: false });
    listeners.listen(canvas, "pointerdown", (event) => this.startDrag(event));
    listeners.listen(canvas, "pointermove", (event) => this.onMove(event));
    listeners.listen(canvas, "pointerup", (event) => this.endDrag(event));
    listeners.listen(canvas, "pointerleave", () => this.point(null));
    listeners.listen(canvas, "dblclick", () => this.press("whole"));
    listeners.listen(canvas, "keydown", (event) => this.onKey(event));
    for (const button of this.root.querySelectorAll(".zoom button")) {
      listeners.listen(button, "click", () => this.press(/** @type {HTMLElement} */ (button).dataset.act));
    }
    listeners.onResize(this.root, () => this.resize());
  }

  dispose() {
    this.stop();
    clearTimeout(this.reportTimer);
    clearTimeout(this.restTimer);
    cancelAnimationFrame(this.frame);
    this.bar.dispose();
    this.listeners.dispose();
  }

  createCells() {
    const { wall, other, layers, heads } = this.data, a = new RunCells(wall, layers.length * heads);
    return other ? new DifferenceCells(a, new RunCells(other, layers.length * heads)) : a;
  }

  createGrid() {
    const { layers, heads } = this.data;
    return new Grid(layers.length, heads, this.cells.tokens, this.root.clientWidth || 900);
  }

  /** @param {Data} data */
  refresh(data) {
    const isOther = this.identity !== undefined && this.identity !== data.identity;
    this.data = data;
    if (isOther) {
      this.cells = this.createCells();
      this.selection = [];
      this.pointed = null;
      this.resize();
    }
    if (this.identity !== data.identity) this.restart(data.step);
    this.identity = data.identity;
    this.follow(data.step);
    this.isStale = true;
    this.show(this.step);
    this.showDetail();
  }

  resize() {
    this.grid = this.createGrid();
    this.view = this.grid.clamp(this.view);
    this.isStale = true;
    this.schedule();
  }

  /** @param {number} step */
  show(step) {
    this.step = step;
    /** @type {number[]} */
    const changed = [], { cells, index } = this, isPainted = !this.isStale;
    cells.go(index, isPainted ? (cell) => changed.push(cell) : undefined);
    if (isPainted) this.painter.repaint(changed);
    const phase = index === 0 ? "the prompt was read" : `after token ${cells.tokens - this.steps.length + index}`;
    this.bar.show(step === this.data.step ? this.data.why : "", `${phase} “${this.textAfter(index)}”`);
    this.drawLegend();
    this.schedule();
    this.root.dataset.step = String(step);
    this.root.dataset.identity = this.identity;
    this.root.dataset.totals = cells.totals.join(",");
  }

  /** @param {number} index of a step */
  textAfter(index) {
    const { readBy } = this.data.wall;
    return (this.data.texts[readBy[index] - 1] ?? "").replaceAll("\n", "⏎").trim();
  }

  drawLegend() {
    const { labels, meanings, colours, facts, factColour, readsStep, ink } = this.data, { totals, codes } = this.cells;
    const read = codes.length - totals[UNSEEN];
    /** @type {(kind: string, colour: string, text: string, title: string) => HTMLElement} */
    const chip = (kind, colour, text, title) => {
      const node = createElement("span", "chip"), swatch = createElement("span", `swatch ${kind}`);
      if (kind === "ring") swatch.style.borderColor = colour;
      else swatch.style.background = colour;
      node.append(swatch, createElement("span", "", text));
      node.title = title;
      return node;
    };
    const chips = labels.flatMap((label, code) => {
      if (code === UNSEEN || !totals[code]) return [];
      return [chip("", colours[code], `${label} ${formatShare(totals[code], read)}`, meanings[code])];
    });
    if (facts.length) chips.push(chip("ring", factColour, "the fact", "The marked words of the prompt that the answer needs."));
    if (readsStep === this.step) {
      const title = "The tokens whose slots get most attention at this step, larger: more. Click to hide or show them.";
      const toggle = chip("dot", ink, "read most", title);
      toggle.classList.toggle("off", !this.showsReads);
      toggle.addEventListener("click", () => {
        this.showsReads = !this.showsReads;
        this.drawLegend();
        this.schedule();
      });
      chips.push(toggle);
    }
    findPart(this.root, "legend").replaceChildren(...chips);
  }

  schedule() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    if (!this.root.clientWidth) return;
    const { grid, view, data, cells } = this, ratio = window.devicePixelRatio || 1;
    const { context } = sizeCanvas(this.canvas, grid.canvasHeight);
    if (this.isStale) {
      const visible = grid.visibleHeads(view).length * cells.tokens, isFirst = !this.painter.grid;
      if (isFirst || visible <= SHARP_CELLS) this.paint(ratio);
      else {
        clearTimeout(this.restTimer);
        this.restTimer = setTimeout(() => {
          this.paint(ratio);
          this.schedule();
        }, REST_MS);
      }
    }
    this.painter.draw(context, view);
    const { texts, layers, facts, token, ink, quiet, paper, factColour, focusColour } = data;
    const marks = {
      grid, view, texts, layers, facts, ink, quiet, paper, factColour, focusColour,
      reads: data.readsStep === this.step && this.showsReads ? this.reads() : [],
      focus: this.focus,
      token: this.pointed && this.pointed.position >= 0 ? this.pointed.position : token,
      selection: this.selection,
      wordColour: (/** @type {number} */ cell) => this.wordColour(cells.codes[cell]),
    };
    drawMarks(context, marks, getComputedStyle(this.root).fontFamily);
  }

  /** @param {number} ratio */
  paint(ratio) {
    this.painter.paint(this.grid, this.view, this.cells, this.data.colours, ratio);
    this.isStale = false;
  }

  reads() {
    const { readPositions, readMasses, readsPerHead } = this.data, reads = [];
    for (let at = 0; at < readPositions.length; at++) {
      const position = readPositions[at];
      if (position >= 0) reads.push({ head: Math.floor(at / readsPerHead), position, mass: readMasses[at] });
    }
    return reads;
  }

  /**
   * Black or white, whichever is easier to read on the code's colour.
   * @param {number} code
   */
  wordColour(code) {
    const [red, green, blue] = rgb(this.data.colours[code]);
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#16181d" : "#ffffff";
  }

  // pointing

  /** @param {MouseEvent} event */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    const { x, y } = this.place(event), { drag, grid } = this;
    if (!drag) {
      this.point(grid.cellAt(x, y, this.view));
      return;
    }
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK_PIXELS;
    if (!drag.moved) return;
    if (drag.selects) this.select(drag, { x, y });
    else this.look(grid.clamp({ ...drag.view, x: drag.view.x - (x - drag.x) / drag.view.scale, y: drag.view.y - (y - drag.y) / drag.view.scale }));
  }

  /** @param {{ head: number, position: number } | null} pointed */
  point(pointed) {
    this.pointed = pointed;
    this.showDetail();
    this.schedule();
  }

  /** @param {PointerEvent} event */
  startDrag(event) {
    if (event.button !== 0) return;
    this.drag = { ...this.place(event), view: this.view, selects: event.shiftKey, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    if (!event.shiftKey) this.canvas.classList.add("dragging");
  }

  /** @param {PointerEvent} event */
  endDrag(event) {
    const { drag } = this;
    this.drag = null;
    this.canvas.classList.remove("dragging");
    if (this.canvas.hasPointerCapture(event.pointerId)) this.canvas.releasePointerCapture(event.pointerId);
    if (!drag || drag.moved) return;
    const { x, y } = this.place(event), cell = this.grid.cellAt(x, y, this.view);
    if (!cell) return;
    const { layer, row } = this.grid.placeOf(cell.head);
    this.component.setTriggerValue("place", [this.data.layers[layer], row, cell.position]);
  }

  /**
   * Select the heads between two canvas points.
   * @param {{ x: number, y: number }} from
   * @param {{ x: number, y: number }} to
   */
  select(from, to) {
    const { grid, view } = this, [left, right] = [from.x, to.x].sort((a, b) => a - b), [top, bottom] = [from.y, to.y].sort((a, b) => a - b);
    this.selection = grid.visibleHeads(view).filter((head) => {
      const box = grid.tileBox(head, view);
      return box.x < right && box.x + box.width > left && box.y < bottom && box.y + box.height > top;
    });
    this.showDetail();
    this.schedule();
  }

  // moving

  /** @param {View} view */
  look(view) {
    this.view = view;
    this.isStale = true;
    this.schedule();
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    const { x, y } = this.place(event), isChosen = event.ctrlKey || event.metaKey || this.canvas.matches(":focus");
    if (!isChosen) return; // the page scrolls
    event.preventDefault();
    this.look(this.grid.zoomed(this.view, Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.006), x, y));
  }

  /** @param {string | undefined} action */
  press(action) {
    const { grid, view, focus } = this, x = grid.left + grid.width / 2, y = grid.top + grid.height / 2;
    if (action === "whole") this.look(grid.whole);
    else if (action === "focus") this.look(grid.viewOf(focus ?? 0));
    else this.look(grid.zoomed(view, action === "in" ? 2 : 0.5, x, y));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { grid, view } = this, byX = grid.width / view.scale / 8, byY = grid.height / view.scale / 8;
    const move = (/** @type {number} */ x, /** @type {number} */ y) => this.look(grid.clamp({ ...view, x: view.x + x, y: view.y + y }));
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => this.press("in"),
      "-": () => this.press("out"),
      0: () => this.press("whole"),
      f: () => this.press("focus"),
      w: () => move(0, -byY),
      s: () => move(0, byY),
      a: () => move(-byX, 0),
      d: () => move(byX, 0),
      Escape: () => {
        this.selection = [];
        this.showDetail();
        this.schedule();
      },
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  // words

  showDetail() {
    const lines = this.pointed ? [this.tokenLine(this.pointed), this.headLine(this.pointed.head)] : [];
    if (this.selection.length) lines.push(this.selectionLine());
    if (!lines.length) lines.push(["", HINT]);
    this.detail.replaceChildren(
      ...lines.flatMap(([bold, plain]) => [...(bold ? [createElement("strong", "", bold)] : []), createElement("span", "", plain)]),
    );
  }

  /** @param {number} head */
  headName(head) {
    const { layer, row } = this.grid.placeOf(head);
    return `layer ${this.data.layers[layer]}, KV head ${row}`;
  }

  /**
   * @param {{ head: number, position: number }} cell
   * @returns {[string, string]}
   */
  tokenLine({ head, position }) {
    const { data, cells, index } = this;
    if (position < 0) return [this.headName(head), ""];
    const code = cells.codes[head * cells.tokens + position], text = (data.texts[position] ?? "").replaceAll("\n", "⏎");
    const parts = [`${data.labels[code]}${data.other ? "" : this.since(head, position, index)}`];
    const read = data.readsStep === this.step ? this.reads().find((one) => one.head === head && one.position === position) : undefined;
    if (read) parts.push(`its slot gets ${(100 * read.mass).toPrecision(3)} % of the attention`);
    return [`${this.headName(head)}, token ${position} “${text}”`, parts.join(" · ")];
  }

  /**
   * @param {number} head
   * @param {number} position
   * @param {number} index
   */
  since(head, position, index) {
    const { data, cells } = this, at = changedAt(data.wall, head * cells.tokens + position, index);
    if (at >= 0) return ` since step ${this.steps[at]}`;
    return cells.codes[head * cells.tokens + position] && position < data.wall.readBy[0] ? " since the prompt" : "";
  }

  /**
   * @param {number} head
   * @returns {[string, string]}
   */
  headLine(head) {
    return ["this head:", this.shares(countCodes(this.cells, [head]))];
  }

  /** @returns {[string, string]} */
  selectionLine() {
    const { selection, cells } = this, kept = selection.map((head) => {
      const counts = countCodes(cells, [head]);
      return counts[0] / Math.max(1, cells.tokens - counts[UNSEEN]);
    });
    const range = `${this.data.labels[0]} from ${formatShare(Math.min(...kept), 1)} to ${formatShare(Math.max(...kept), 1)} by head`;
    return [`${formatCount(selection.length)} selected heads:`, `${this.shares(countCodes(cells, selection))}; ${range}`];
  }

  /** @param {number[]} counts of cells by code */
  shares(counts) {
    const read = counts.reduce((sum, count, code) => sum + (code === UNSEEN ? 0 : count), 0);
    const codes = Array.from({ length: CODES }, (_, code) => code).filter((code) => code !== UNSEEN && counts[code]);
    return codes.map((code) => `${formatShare(counts[code], read)} ${this.data.labels[code]}`).join(", ");
  }
}

/**
 * @param {number} part
 * @param {number} whole
 */
function formatShare(part, whole) {
  const percent = whole ? (100 * part) / whole : 0;
  if (percent === 0 || percent === 100) return `${percent} %`;
  return percent < 0.1 ? "below 0.1 %" : percent > 99.9 ? "above 99.9 %" : `${Number(percent.toPrecision(3))} %`;
}
