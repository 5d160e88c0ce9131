/** @import { Component, PlotlyChart, Vector } from "../types.js" */
import { createElement, find, findPart, Listeners, positionOf } from "../dom.js";
import { LinkedCharts } from "../linked-charts.js";
import { StepBar } from "../step-bar.js";
import { SteppedView } from "../stepped-view.js";
import { formatCount } from "../text.js";
import { TextBlocks } from "../text-blocks.js";
import { countStates, HeadHistory, slotsOf, UNSEEN } from "./history.js";
import { Mosaic } from "./mosaic.js";
import { SlotGrid } from "./slot-grid.js";
import { shortText, tokenFacts } from "./token-facts.js";

const HINT = "Hover a word, a slot or the mosaic to see its fate; click to see what flowed into its slot.";

/**
 * One head of a run at a step; `identity` names run, layer and head.
 * @typedef {object} Data
 * @property {string} identity
 * @property {string[]} texts
 * @property {number[]} steps
 * @property {number[]} eventSteps
 * @property {number} step
 * @property {number | null} selected position that stays lit
 * @property {string} why
 * @property {string[] | null} phases
 * @property {Vector} birth
 * @property {Vector} leave
 * @property {Vector} death
 * @property {Vector} absorb
 * @property {Vector} parent
 * @property {{ rows: number, columns: number }} mosaic
 * @property {Vector} codes
 * @property {number | null} massesStep
 * @property {Vector} [trueMass]
 * @property {Vector} [slotMass]
 * @property {Record<string, string>} colours
 * @property {string[]} labels
 * @property {string[]} meanings
 * @property {string} paper
 * @property {string} ink
 */

/**
 * The linked view of one head: step bar over the mosaic, slot grid and token text. The server sends the head's history
 * once; every step is derived from it here, so that scrubbing, playing and hovering need no request.
 */
export class TokenStrip extends SteppedView {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {Set<number>} */
  lit = new Set();
  /** @type {number | null} */
  litSlot = null;

  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    super(component);
    this.data = data;
    this.root = find(component.parentElement, ".kv-strip");
    this.panel = findPart(this.root, "text");
    this.grid = new SlotGrid(/** @type {HTMLCanvasElement} */ (findPart(this.root, "grid")));
    this.mosaic = new Mosaic(/** @type {HTMLCanvasElement} */ (findPart(this.root, "mosaic")), findPart(this.root, "playhead"));
    this.texts = data.texts;
    this.states = new Uint8Array(this.tokens).fill(255);
    this.blocks = this.createBlocks();
    this.history = new HeadHistory(data, this.tokens);
    this.step = this.serverStep = data.step;
    this.selected = data.selected;
    this.bar = new StepBar(this);
    this.charts = new LinkedCharts((position, chart) => this.onHoverChart(position, chart), () => this.dim());
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

  get tokens() {
    return this.texts.length;
  }

  get owners() {
    return this.history.ownersAt(this.step);
  }

  get colours() {
    return Object.values(this.data.colours);
  }

  listen() {
    const { panel, grid, mosaic, listeners } = this;
    listeners.listen(panel, "mouseover", (event) => this.onHoverWord(positionOf(event.target)));
    listeners.listen(panel, "click", (event) => {
      const position = positionOf(event.target);
      if (position !== null) this.pick(position);
    });
    listeners.listen(grid.canvas, "mousemove", (event) => this.onHoverSlot(grid.slotAt(event)));
    listeners.listen(grid.canvas, "click", (event) => {
      const slot = grid.slotAt(event);
      if (slot === null) return;
      this.pick(slot);
      this.scrollTo(slot);
    });
    listeners.listen(mosaic.canvas, "mousemove", (event) => {
      this.focusToken(mosaic.cellAt(event, this.steps.length, this.tokens).position);
    });
    listeners.listen(mosaic.canvas, "click", (event) => {
      this.stop();
      this.go(mosaic.cellAt(event, this.steps.length, this.tokens).index);
    });
    for (const node of [panel, grid.canvas, mosaic.canvas]) listeners.listen(node, "mouseleave", () => this.dim());
    listeners.onResize(this.root, () => {
      this.drawMosaic();
      this.grid.draw();
    });
  }

  dispose() {
    this.stop();
    clearTimeout(this.reportTimer);
    this.bar.dispose();
    this.charts.dispose();
    this.blocks.dispose();
    this.listeners.dispose();
  }

  /** @param {Data} data */
  refresh(data) {
    if (this.identity !== data.identity) this.load(data);
    this.data = data;
    for (const [name, colour] of Object.entries(data.colours)) this.root.style.setProperty(`--${name}`, colour);
    this.selected = data.selected;
    this.follow(data.step);
    this.drawMosaic();
    this.show(this.step);
  }

  /**
   * Show another head. All heads of a run have the same text, whose words stay.
   * @param {Data} data
   */
  load(data) {
    this.restart(data.step);
    this.unlight();
    this.identity = data.identity;
    this.history = new HeadHistory(data, data.texts.length);
    if (isSameText(this.texts, data.texts)) return;
    this.texts = data.texts;
    this.states = new Uint8Array(this.tokens).fill(255);
    this.blocks.dispose();
    this.blocks = this.createBlocks();
  }

  createBlocks() {
    return new TextBlocks(this.panel, this.texts, (span, position) => this.styleWord(span, position));
  }

  /**
   * @param {HTMLElement} span
   * @param {number} position
   */
  styleWord(span, position) {
    const isLit = this.lit.has(position), isPivot = isLit && position === this.litSlot;
    span.className = `t s${this.states[position]}${isLit ? " lit" : ""}${isPivot ? " pivot" : ""}`;
  }

  /** @param {number} position */
  pick(position) {
    this.selected = position;
    this.component.setTriggerValue("token", position);
    this.showSelected();
  }

  /** @param {number} step */
  show(step) {
    const { data, texts } = this;
    this.step = step;
    this.charts.unmark();
    this.unlight();
    this.states = this.history.statesAt(step);
    this.blocks.setCodes(this.states);
    const counts = countStates(this.states), slots = slotsOf(this.states), read = this.tokens - counts[UNSEEN];
    this.drawLegend(counts);
    this.grid.content = {
      key: [this.identity, step, this.colours, data.paper].join("/"),
      slots,
      states: this.states,
      votes: () => this.history.votesAt(step),
      colours: this.colours,
      paper: data.paper,
      ink: data.ink,
    };
    this.grid.draw();
    this.mosaic.movePlayhead(this.index, this.steps.length);
    const reading = step === 0 ? "the prompt was read" : `after token ${read - 1} “${shortText(texts[read - 1])}”`;
    const phase = data.phases?.[this.index] ?? reading;
    this.bar.show(step === data.step ? data.why : "", `${phase}: ${formatCount(slots.length)} slots for ${formatCount(read)} tokens`);
    this.root.dataset.step = String(step);
    this.root.dataset.identity = this.identity;
    this.root.dataset.slots = String(slots.length);
    this.showSelected();
  }

  drawMosaic() {
    this.mosaic.draw(this.data, this.colours, this.steps.length);
    this.mosaic.movePlayhead(this.index, this.steps.length);
  }

  /** @param {number[]} counts of the tokens in each state */
  drawLegend(counts) {
    const { labels, meanings } = this.data;
    const chips = labels.flatMap((label, state) => {
      if (!counts[state]) return [];
      const chip = createElement("span", "chip");
      chip.append(createElement("span", `swatch s${state}`, "a"), createElement("span", "", `${label} ${formatCount(counts[state])}`));
      chip.title = meanings[state];
      return [chip];
    });
    findPart(this.root, "legend").replaceChildren(...chips);
  }

  /** @param {[string, string][]} lines */
  showDetail(lines) {
    const nodes = lines.flatMap(([bold, plain]) => [
      ...(bold ? [createElement("strong", "", bold)] : []),
      ...(plain ? [createElement("span", "", plain)] : []),
    ]);
    findPart(this.root, "detail").replaceChildren(...nodes);
  }

  /** @param {number} position */
  showFacts(position) {
    const { history, step, states, texts } = this, { labels, massesStep, trueMass, slotMass } = this.data;
    const masses = massesStep === null || !trueMass || !slotMass ? null : { step: massesStep, trueMass, slotMass };
    this.showDetail(tokenFacts({ history, step, states, texts, labels, masses }, position));
  }

  /** Light the selected token, or show how to select one. */
  showSelected() {
    const { selected } = this;
    if (selected === null || selected === undefined || selected >= this.tokens) this.showDetail([["", HINT]]);
    else this.focusToken(selected);
  }

  /**
   * Light a token with all tokens of its slot, and show what happened to it.
   * @param {number} position
   */
  focusToken(position) {
    const owner = this.owners[position];
    this.light(owner >= 0 ? owner : null, position);
    this.showFacts(position);
  }

  /** @param {number | null} position */
  onHoverWord(position) {
    if (position === null) return;
    this.focusToken(position);
    this.charts.mark(position);
  }

  /**
   * @param {number} position
   * @param {PlotlyChart} chart
   */
  onHoverChart(position, chart) {
    if (position < 0 || position >= this.tokens) return;
    this.focusToken(position);
    this.scrollTo(position);
    this.charts.mark(position, chart);
  }

  /** @param {number | null} slot */
  onHoverSlot(slot) {
    if (slot === null) this.dim();
    else if (slot !== this.litSlot) {
      this.light(slot, slot);
      this.showFacts(slot);
    }
  }

  dim() {
    this.charts.unmark();
    this.unlight();
    this.grid.draw();
    this.showSelected();
  }

  /**
   * @param {number | null} slot
   * @param {number} position
   */
  light(slot, position) {
    this.unlight();
    if (slot !== null) this.owners.forEach((owner, token) => { if (owner === slot) this.lit.add(token); });
    this.lit.add(position);
    this.litSlot = this.grid.lit = slot;
    for (const token of this.lit) this.blocks.spans[token]?.classList.add("lit");
    if (slot !== null) this.blocks.spans[slot]?.classList.add("pivot");
    this.grid.draw();
  }

  unlight() {
    for (const token of this.lit) this.blocks.spans[token]?.classList.remove("lit", "pivot");
    this.lit.clear();
    this.litSlot = this.grid.lit = null;
  }

  /** @param {number} position */
  scrollTo(position) {
    const word = this.blocks.word(position);
    if (word) this.panel.scrollTo({ top: word.offsetTop - this.panel.clientHeight / 2, behavior: "smooth" });
  }
}

/**
 * @param {string[]} texts
 * @param {string[]} others
 */
function isSameText(texts, others) {
  return texts === others || (texts.length === others.length && texts.every((text, position) => text === others[position]));
}
