/* The linked view of one head: step scrubber over the mosaic, slot grid and token text. The parts beside this file
   (head, pictures, words) are put before it.
   The server sends the head's history once (a few vectors); every step is derived from it here, so that scrubbing,
   playing and hovering need no trip to the server. The rules are those of kvlab/analysis/lineage. */

const PLAY_MS = 220, TELL_MS = 250;

class View extends Words {
  constructor(root) {
    super();
    this.root = root.querySelector(".kv-strip");
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.cleanups = [];
    this.lit = [];
    this.timer = null;
    this.telling = null;
    this.bar = new StepBar(this);
    this.cleanups.push(() => this.bar.dispose());
    this.listen();
  }

  /* Another head: its history is new; where it is of the same text, as all heads of a run are, the words stay. */
  load(data) {
    this.stop();
    clearTimeout(this.telling);
    this.unlight();
    this.identity = data.identity;
    for (const name of ["birth", "leave", "death", "absorb"]) this[name] = this.stepsOf(data[name]);
    this.parent = data.parent;
    this.steps = data.steps;
    this.step = data.step;
    this.known = data.step;
    this.sent = [];
    this.pinned = data.selected;
    this.slots = null;
    this.ownersStep = this.votesStep = this.gridKey = null;
    if (!this.hasText(data.texts)) this.buildText(data.texts);
  }

  /* A loop: `Int32Array.from` with a function takes thirty times as long. */
  stepsOf(vector) {
    const steps = new Int32Array(vector);
    for (let t = 0; t < steps.length; t++) if (steps[t] === -1) steps[t] = NEVER;
    return steps;
  }

  refresh(data) {
    if (this.identity !== data.identity) this.load(data);
    this.data = data;
    for (const [name, colour] of Object.entries(data.colours)) this.root.style.setProperty(`--${name}`, colour);
    this.colours = Object.values(data.colours);
    this.follow(data.step);
    this.pinned = data.selected;
    this.drawMosaic();
    this.show(this.step);
  }

  listen() {
    const on = (node, type, handler, options) => {
      node.addEventListener(type, handler, options);
      this.cleanups.push(() => node.removeEventListener(type, handler, options));
    };
    const text = this.part("text"), grid = this.part("grid"), mosaic = this.part("mosaic");
    on(text, "mouseover", (event) => this.overToken(event.target));
    on(text, "mouseleave", () => this.dim());
    on(text, "click", (event) => event.target.dataset.p !== undefined && this.pick(Number(event.target.dataset.p)));
    on(grid, "mousemove", (event) => this.overSlot(this.slotAt(event)));
    on(grid, "mouseleave", () => this.dim());
    on(grid, "click", (event) => { const slot = this.slotAt(event); if (slot !== null) { this.pick(slot); this.scrollTo(slot); } });
    on(mosaic, "mousemove", (event) => this.overMosaic(event));
    on(mosaic, "mouseleave", () => this.dim());
    on(mosaic, "click", (event) => { this.stop(); this.go(this.mosaicCell(event).column); });
    this.charts = new Charts((position, chart) => this.overChart(position, chart), () => this.dim());
    this.cleanups.push(() => this.charts.dispose());
    const observer = new ResizeObserver(() => { this.drawMosaic(); this.drawGrid(); });
    observer.observe(this.root);
    this.cleanups.push(() => observer.disconnect());
  }

  dispose() {
    this.stop();
    clearTimeout(this.telling);
    this.blocks?.dispose();
    this.cleanups.forEach((clean) => clean());
    this.cleanups = [];
  }

  index() { return Math.max(0, this.steps.indexOf(this.step)); }

  go(index) { this.show(this.steps[Math.max(0, Math.min(this.steps.length - 1, index))]); this.tell(); }

  move(by) { this.stop(); this.go(this.index() + by); }

  nextEvent() {
    this.stop();
    const later = this.data.eventSteps.find((step) => step > this.step);
    if (later !== undefined) this.go(this.steps.indexOf(later));
  }

  toggle() {
    if (this.timer) { this.stop(); this.tell(); return; }
    if (this.index() === this.steps.length - 1) this.show(this.steps[0]);
    this.bar.playing(true);
    this.timer = setInterval(() => {
      if (this.index() === this.steps.length - 1) { this.stop(); this.tell(); return; }
      this.show(this.steps[this.index() + 1]);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.bar.playing(false);
  }

  /* The server hears of a step once the reader has stopped there. */
  tell() {
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      if (this.step === (this.sent.at(-1) ?? this.known)) return;
      this.sent.push(this.step);
      this.component.setStateValue("step", this.step);
    }, TELL_MS);
  }

  /* An answer to a step told earlier must not pull the reader back from a later one. */
  follow(step) {
    const echo = this.sent.indexOf(step);
    if (echo >= 0) this.sent.splice(0, echo + 1);
    else if (step !== this.known) this.step = step;
    this.known = step;
  }

  pick(position) {
    this.pinned = position;
    this.component.setTriggerValue("token", position);
    this.rest();
  }

  show(step) {
    this.step = step;
    this.charts?.unmark();
    this.unlight();
    const states = this.statesAt(step), counts = new Array(7).fill(0);
    for (const state of states) counts[state]++;
    this.states = states;
    this.blocks.wear(states);
    this.slots = [];
    for (let t = 0; t < this.tokens; t++) if (states[t] >= SINK && states[t] <= PIVOT) this.slots.push(t);
    this.legend(counts);
    this.drawGrid();
    this.movePlayhead();
    const read = this.tokens - counts[UNSEEN];
    const reading = step === 0 ? "the prompt was read" : `after token ${read - 1} “${visible(this.texts[read - 1] ?? "")}”`;
    const phase = this.data.phases?.[this.index()] ?? reading;
    const held = `${this.slots.length.toLocaleString("en")} slots for ${read.toLocaleString("en")} tokens`;
    this.bar.show(this.steps, step, step === this.data.step ? this.data.why : "", `${phase}: ${held}`);
    this.root.dataset.step = step;
    this.root.dataset.identity = this.identity;
    this.root.dataset.slots = this.slots.length;
    this.rest();
  }

  overToken(node) {
    if (node.dataset?.p === undefined) return;
    const position = Number(node.dataset.p), owner = this.owners()[position];
    this.light(owner >= 0 ? owner : null, position);
    this.tellFate(position);
    this.charts.mark(position);
  }

  overChart(position, chart) {
    if (position < 0 || position >= this.tokens) return;
    const owner = this.owners()[position];
    this.light(owner >= 0 ? owner : null, position);
    this.tellFate(position);
    this.scrollTo(position);
    this.charts.mark(position, chart);
  }

  rest() {
    if (this.pinned !== null && this.pinned !== undefined && this.pinned < this.tokens) {
      const owner = this.owners()[this.pinned];
      this.light(owner >= 0 ? owner : null, this.pinned);
      this.tellFate(this.pinned);
    }
    else this.detail([["", "Hover a word, a slot or the mosaic to see its fate; click to see what flowed into its slot."]]);
  }

  dim() { this.charts?.unmark(); this.unlight(); if (this.slots) { this.drawGrid(); this.rest(); } }

  overSlot(slot) {
    if (slot === null) { this.dim(); return; }
    if (slot === this.litSlot) return;
    this.lightSlot(slot);
    this.tellFate(slot);
  }

  overMosaic(event) {
    const { position } = this.mosaicCell(event), owner = this.owners()[position];
    this.light(owner >= 0 ? owner : null, position);
    this.tellFate(position);
  }
}

export default mountedWithTexts(View);
