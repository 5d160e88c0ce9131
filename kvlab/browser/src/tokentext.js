/** @import { Component, PlotlyChart, Vector } from "./types.js" */
import { context2d, sizeCanvas } from "./canvas.js";
import { createElement, find, findPart, Listeners, positionOf } from "./dom.js";
import { LinkedCharts } from "./linked-charts.js";
import { formatCount, visibleText } from "./text.js";
import { TextBlocks } from "./text-blocks.js";

const MAP_HEIGHT = 16, TEXT_LIMIT = 32, UNCODED = 255;

/**
 * A text whose token i has the class `classes[codes[i]]`.
 * @typedef {object} Data
 * @property {string} identity
 * @property {string[]} texts
 * @property {Vector} codes
 * @property {{ name: string, colour: string, cue: string }[]} classes
 * @property {[number, number] | null} chosen first and last chosen word
 * @property {boolean} choosing whether words can be chosen
 * @property {number | null} scroll position to scroll to
 * @property {string} hint
 * @property {string[]} [notes] per token
 */

/**
 * Per column of a strip the class that most of its tokens have.
 * @param {Vector} codes
 * @param {number} columns
 */
export function columnCodes(codes, columns) {
  const counts = new Uint32Array(256), edge = (/** @type {number} */ column) => Math.floor((column * codes.length) / columns);
  return Array.from({ length: columns }, (_, column) => {
    counts.fill(0);
    for (let at = edge(column); at < edge(column + 1); at++) counts[codes[at]]++;
    return counts.indexOf(Math.max(...counts));
  });
}

/**
 * The words chosen by a click: that word, or with `extend` all from the first chosen one.
 * @param {[number, number] | null} chosen
 * @param {number} position
 * @param {boolean} extend
 */
export function chosenSpan(chosen, position, extend) {
  const from = extend && chosen ? chosen[0] : position;
  return [Math.min(from, position), Math.max(from, position)];
}

/** The text of a run, each token shaded by its class, linked to the charts that run along it. */
export class TokenText {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {number | null} */
  scrolled = null;
  /** @type {[number, number]} */
  shownChosen = [0, -1];
  /** @type {HTMLElement | undefined} */
  lit;

  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.data = data;
    this.root = find(component.parentElement, ".kv-text-panel");
    this.panel = findPart(this.root, "text");
    this.map = /** @type {HTMLCanvasElement} */ (findPart(this.root, "map"));
    this.charts = new LinkedCharts((position, chart) => this.onHoverChart(position, chart), () => this.dim());
    /** @type {Vector} */
    this.codes = [];
    /** @type {TextBlocks | null} */
    this.blocks = null;
    const { panel, listeners } = this;
    listeners.listen(panel, "mouseover", (event) => this.onHoverWord(positionOf(event.target)));
    listeners.listen(panel, "mouseleave", () => this.dim());
    listeners.listen(panel, "click", (event) => this.choose(positionOf(event.target), event.shiftKey));
    listeners.listen(this.map, "click", (event) => this.jump(event));
    listeners.onResize(this.root, () => this.drawMap());
  }

  dispose() {
    this.charts.dispose();
    this.blocks?.dispose();
    this.listeners.dispose();
  }

  /** @param {Data} data */
  refresh(data) {
    this.data = data;
    if (this.identity !== data.identity) this.createBlocks();
    this.identity = data.identity;
    this.codes = data.codes;
    this.blocks?.setCodes(data.codes);
    data.classes.forEach(({ colour }, code) => this.root.style.setProperty(`--c${code}`, colour));
    this.drawLegend();
    this.showChosen();
    this.drawMap();
    if (data.scroll !== null && data.scroll !== this.scrolled) {
      this.scrolled = data.scroll;
      this.scrollTo(data.scroll);
    }
  }

  createBlocks() {
    const { texts } = this.data;
    this.blocks?.dispose();
    this.codes = new Uint8Array(texts.length).fill(UNCODED);
    this.blocks = new TextBlocks(this.panel, texts, (span, position) => this.styleWord(span, position));
  }

  /**
   * @param {HTMLElement} span
   * @param {number} position
   */
  styleWord(span, position) {
    const [from, to] = this.data.chosen ?? [0, -1], code = this.codes[position];
    span.style.setProperty("--own", `var(--c${code})`);
    span.dataset.cue = this.data.classes[code]?.cue ?? "none";
    span.classList.toggle("chosen", position >= from && position <= to);
  }

  drawLegend() {
    const { classes } = this.data, counts = new Array(classes.length).fill(0);
    for (const code of this.codes) counts[code]++;
    const chips = classes.flatMap(({ name, cue }, code) => {
      if (!counts[code]) return [];
      const chip = createElement("span", "chip"), swatch = createElement("span", "t", "abc");
      swatch.dataset.cue = cue;
      swatch.style.setProperty("--own", `var(--c${code})`);
      chip.append(swatch, createElement("span", "", `${name} ${formatCount(counts[code])}`));
      return [chip];
    });
    findPart(this.root, "legend").replaceChildren(...chips);
  }

  /** Draw the whole text as a strip. */
  drawMap() {
    if (!this.map.clientWidth || !this.codes.length) return;
    sizeCanvas(this.map, MAP_HEIGHT);
    const { width, height } = this.map, columns = Math.min(width, this.codes.length), context = context2d(this.map);
    context.resetTransform();
    columnCodes(this.codes, columns).forEach((code, column) => {
      context.fillStyle = this.data.classes[code]?.colour ?? "#888";
      context.fillRect((column * width) / columns, 0, Math.ceil(width / columns) + 0.5, height);
    });
  }

  /** @param {MouseEvent} event */
  jump(event) {
    const box = this.map.getBoundingClientRect();
    this.scrollTo(Math.floor(((event.clientX - box.left) / box.width) * this.data.texts.length));
  }

  /** @param {number} position */
  scrollTo(position) {
    const { panel } = this, word = this.blocks?.word(position);
    if (!word) return;
    // Blocks that are not laid out have an estimated height: the target is exact after two more frames.
    let frames = 3;
    const scroll = () => {
      panel.scrollTop += word.getBoundingClientRect().top - panel.getBoundingClientRect().top - panel.clientHeight / 2;
      if (--frames) requestAnimationFrame(scroll);
    };
    scroll();
  }

  /** @param {number | null} position */
  onHoverWord(position) {
    if (position === null) return;
    this.light(position);
    this.charts.mark(position);
  }

  /**
   * @param {number} position
   * @param {PlotlyChart} chart
   */
  onHoverChart(position, chart) {
    if (position < 0 || position >= this.data.texts.length) return;
    this.light(position);
    this.scrollTo(position);
    this.charts.mark(position, chart);
  }

  /** @param {number} position */
  light(position) {
    this.lit?.classList.remove("lit");
    this.lit = this.blocks?.word(position);
    this.lit?.classList.add("lit");
    const note = this.data.notes?.[position], name = this.data.classes[this.codes[position]]?.name ?? "";
    this.showDetail(`${position} “${visibleText(this.data.texts[position], TEXT_LIMIT)}”`, name + (note ? ` · ${note}` : ""));
  }

  dim() {
    this.lit?.classList.remove("lit");
    this.lit = undefined;
    this.charts.unmark();
    this.showDetail("", this.data.hint);
  }

  /**
   * @param {string} bold
   * @param {string} plain
   */
  showDetail(bold, plain) {
    const parts = [...(bold ? [createElement("strong", "", bold)] : []), createElement("span", "", plain)];
    findPart(this.root, "detail").replaceChildren(...parts);
  }

  /**
   * @param {number | null} position
   * @param {boolean} extend
   */
  choose(position, extend) {
    if (position === null || !this.data.choosing) return;
    window.getSelection()?.removeAllRanges();
    this.component.setTriggerValue("chosen", chosenSpan(this.data.chosen, position, extend));
  }

  showChosen() {
    const spans = this.blocks?.spans ?? [], [before, after] = this.shownChosen, [from, to] = this.data.chosen ?? [0, -1];
    for (let at = before; at <= after; at++) spans[at]?.classList.remove("chosen");
    for (let at = from; at <= to; at++) spans[at]?.classList.add("chosen");
    this.shownChosen = [from, to];
    this.dim();
  }
}
