// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/canvas.js src/components/tokenstrip.js src/dom.js src/keyboard.js src/linked-charts.js src/mount.js src/payload.js src/plotly-charts.js src/shared-data.js src/step-bar.js src/stepped-view.js src/steps.js src/text-blocks.js src/text.js src/tokenstrip/history.js src/tokenstrip/mosaic.js src/tokenstrip/slot-grid.js src/tokenstrip/token-facts.js src/tokenstrip/token-strip.js
// SHA-256 of the sources: 4176b892e0ef40f07518bc10a66417635fa2e44f28e6f8e3af11d3fb339824f9
// SHA-256 of the code: 12dc849ccabd06be387bafa97b4d779b6cb882d44fe4c132f5990540d49fbfdb
// src/mount.js
var deliverNow = (component, draw) => {
  draw(component.data);
  return () => {
  };
};
function mount(ViewType, deliver = deliverNow) {
  const views = /* @__PURE__ */ new WeakMap();
  return (component) => {
    const { parentElement } = component;
    const cancel = deliver(component, (data) => {
      const view = views.get(parentElement) ?? new ViewType(component, data);
      views.set(parentElement, view);
      view.component = component;
      view.refresh(data);
    });
    return () => {
      cancel();
      views.get(parentElement)?.dispose();
      views.delete(parentElement);
    };
  };
}

// src/payload.js
var ARRAY_TYPES = {
  uint8: Uint8Array,
  int8: Int8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array
};
var unpacked = /* @__PURE__ */ new WeakMap();
function unpack(bytes) {
  if (!unpacked.has(bytes)) unpacked.set(bytes, read(bytes));
  return unpacked.get(bytes);
}
function read(bytes) {
  const headerSize = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { plain, vectors } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerSize)));
  const places = Object.entries(vectors);
  for (const [name, [type, offset, length]] of places) {
    const ArrayType = ARRAY_TYPES[type], start = 4 + headerSize + offset;
    plain[name] = new ArrayType(bytes.slice(start, start + length * ArrayType.BYTES_PER_ELEMENT).buffer);
  }
  return plain;
}

// src/shared-data.js
var store = () => window.kvlabShared ??= { values: /* @__PURE__ */ new Map(), waiting: /* @__PURE__ */ new Map() };
function drawWithShared(view, data, draw) {
  const { values, waiting } = store(), fields = Object.entries(data.shared ?? {});
  if (fields.some(([, name]) => !values.has(name))) {
    waiting.set(view, { data, draw });
    return;
  }
  waiting.delete(view);
  Object.assign(data, Object.fromEntries(fields.map(([field, name]) => [field, values.get(name)])));
  draw(data);
}
function deliverWithShared(component, draw) {
  drawWithShared(component.parentElement, unpack(component.data), draw);
  return () => store().waiting.delete(component.parentElement);
}

// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}
var findPart = (root, name) => find(root, `[data-part="${name}"]`);
function createElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== void 0) node.textContent = text;
  return node;
}
function positionOf(target) {
  const position = (
    /** @type {HTMLElement | null} */
    target?.dataset?.p
  );
  return position === void 0 ? null : Number(position);
}
var Listeners = class {
  /** @type {(() => void)[]} */
  #removals = [];
  /**
   * @template {keyof DocumentEventMap} Type
   * @param {Node} node
   * @param {Type} type
   * @param {(event: DocumentEventMap[Type]) => void} handler
   * @param {AddEventListenerOptions} [options]
   */
  listen(node, type, handler, options) {
    const listener = (
      /** @type {EventListener} */
      handler
    );
    node.addEventListener(type, listener, options);
    this.add(() => node.removeEventListener(type, listener, options));
  }
  /**
   * @param {Element} node
   * @param {() => void} handler
   */
  onResize(node, handler) {
    const observer = new ResizeObserver(handler);
    observer.observe(node);
    this.add(() => observer.disconnect());
  }
  /** @param {() => void} removal */
  add(removal) {
    this.#removals.push(removal);
  }
  dispose() {
    for (const removal of this.#removals.splice(0)) removal();
  }
};

// src/plotly-charts.js
var SETTLE_MS = 100;
function watchPage(callback) {
  let timer;
  const run = () => {
    timer = void 0;
    callback();
  };
  const observer = new MutationObserver(() => {
    timer ??= setTimeout(run, SETTLE_MS);
  });
  observer.observe(document.body, { childList: true, subtree: true, attributeFilter: ["class"] });
  callback();
  return () => {
    clearTimeout(timer);
    observer.disconnect();
  };
}
var allCharts = () => [...document.querySelectorAll(".js-plotly-plot")].map((node) => (
  /** @type {PlotlyChart} */
  node
));
function tokenPosition({ axis, offset }, point) {
  const value = point?.[axis];
  const number = typeof value === "number" ? value : Number.parseInt(value ?? "", 10);
  return Number.isFinite(number) ? Math.round(number) + offset : null;
}
function axisValue(axis, position) {
  if (axis.type !== "category") return position;
  return axis._categories.findLast((label) => Number.parseInt(label, 10) <= position) ?? axis._categories[0];
}

// src/linked-charts.js
var LinkedCharts = class {
  /**
   * @param {(position: number, chart: PlotlyChart) => void} onHover
   * @param {() => void} onLeave
   */
  constructor(onHover, onLeave) {
    this.onHover = onHover;
    this.onLeave = onLeave;
    this.disposed = false;
    this.known = /* @__PURE__ */ new WeakSet();
    this.lines = [];
    this.stopWatching = watchPage(() => this.link());
  }
  dispose() {
    this.stopWatching();
    this.unmark();
    this.disposed = true;
  }
  linked() {
    return allCharts().filter((chart) => chart.layout?.meta?.tokens && chart._fullLayout);
  }
  link() {
    for (const chart of this.linked()) {
      if (this.known.has(chart) || !chart.on) continue;
      this.known.add(chart);
      chart.dataset.linked = "yes";
      chart.on("plotly_hover", (event) => {
        const tokens = chart.layout?.meta?.tokens;
        const position = this.disposed || !tokens ? null : tokenPosition(tokens, event.points?.[0]);
        if (position !== null) this.onHover(position, chart);
      });
      chart.on("plotly_unhover", () => {
        if (!this.disposed) this.onLeave();
      });
    }
  }
  /**
   * @param {number} position
   * @param {PlotlyChart} [except]
   */
  mark(position, except) {
    this.unmark();
    for (const chart of this.linked()) if (chart !== except) this.drawLine(chart, position);
  }
  /**
   * @param {PlotlyChart} chart
   * @param {number} position
   */
  drawLine(chart, position) {
    const tokens = chart.layout?.meta?.tokens, axes = chart._fullLayout, holder = chart.querySelector(".svg-container");
    if (!tokens || !axes || !holder) return;
    const isVertical = tokens.axis === "x";
    const [along, across] = isVertical ? [axes.xaxis, axes.yaxis] : [axes.yaxis, axes.xaxis];
    const at = along.d2p(axisValue(along, position - tokens.offset));
    if (!Number.isFinite(at) || at < 0 || at > along._length) return;
    const start = `${along._offset + at - 1}px`, edge = `${across._offset}px`, length = `${across._length}px`;
    const line = createElement("div", "kv-token-mark");
    Object.assign(
      line.style,
      { position: "absolute", pointerEvents: "none", background: "currentColor", opacity: "0.75", zIndex: "5" },
      isVertical ? { left: start, top: edge, width: "2px", height: length } : { top: start, left: edge, height: "2px", width: length }
    );
    holder.append(line);
    this.lines.push(line);
  }
  unmark() {
    for (const line of this.lines.splice(0)) line.remove();
  }
};

// src/keyboard.js
var hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;
var keyTarget = (event) => (
  /** @type {HTMLElement} */
  event.composedPath()[0]
);
function ignoresKeys(target) {
  if (target === document.body || target.dataset?.testid === "stMain") return true;
  return target.tagName === "BUTTON" && !target.closest("[role=tablist], [role=radiogroup], [role=listbox]");
}

// src/steps.js
var clampIndex = (index, length) => Math.max(0, Math.min(length - 1, index));
function nextEventIndex(steps, events, step) {
  const next = events.find((event) => event > step);
  return next === void 0 ? -1 : steps.indexOf(next);
}
var stepLabel = (steps, step) => steps.length < 2 ? "one step" : `step ${step} of ${steps[steps.length - 1]}`;

// src/step-bar.js
var ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  back: "M9 3h2v10H9zM7 3v10L1 8z",
  play: "M4 3v10l8-5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3h2v10H5zM9 3v10l6-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z"
};
var HTML = `
  <button data-part="first" aria-label="First step" title="First step (Home)"></button>
  <button data-part="back" aria-label="Step back" title="Step back (left arrow)"></button>
  <button data-part="play" aria-label="Play" title="Play or pause (space)"></button>
  <button data-part="next" aria-label="Step forward" title="Step forward (right arrow)"></button>
  <button data-part="last" aria-label="Last step" title="Last step (End)"></button>
  <button data-part="event" title="Next step in which a slot left (n)">next event</button>
  <input data-part="slider" type="range" min="0" step="1" aria-label="Step">
  <span class="step" data-part="step"></span>
  <span class="phase" data-part="phase"></span>`;
var StepBar = class {
  listeners = new Listeners();
  /** @param {SteppedView} view */
  constructor(view) {
    this.view = view;
    this.bar = findPart(view.root, "bar");
    this.bar.innerHTML = HTML;
    this.slider = /** @type {HTMLInputElement} */
    findPart(this.bar, "slider");
    const actions = {
      first: () => this.jump(0),
      back: () => this.jump(view.index - 1),
      play: () => view.toggle(),
      next: () => this.jump(view.index + 1),
      last: () => this.jump(view.steps.length - 1),
      event: () => this.jumpToEvent()
    };
    for (const [name, action] of Object.entries(actions)) {
      const button = findPart(this.bar, name);
      if (name !== "event") button.replaceChildren(createIcon(ICONS[
        /** @type {keyof typeof ICONS} */
        name
      ]));
      this.listeners.listen(button, "click", action);
    }
    this.keys = {
      Home: actions.first,
      ArrowLeft: actions.back,
      " ": actions.play,
      ArrowRight: actions.next,
      End: actions.last,
      n: actions.event
    };
    this.listeners.listen(this.slider, "input", () => this.jump(Number(this.slider.value)));
    this.listeners.listen(document, "keydown", (event) => this.onKey(event));
  }
  dispose() {
    this.listeners.dispose();
  }
  /** @param {number} index */
  jump(index) {
    this.view.stop();
    this.view.go(clampIndex(index, this.view.steps.length));
  }
  jumpToEvent() {
    const { steps, events, step } = this.view;
    this.view.stop();
    const next = nextEventIndex(steps, events, step);
    if (next >= 0) this.view.go(next);
  }
  /**
   * Show the view's step with a caption; `why` is the reason for a step that the user did not choose.
   * @param {string | null | undefined} why
   * @param {string} phase
   */
  show(why, phase) {
    const { steps, step, index } = this.view, label = findPart(this.bar, "step");
    for (const name of ["first", "back", "play", "next", "last", "event", "slider"]) {
      findPart(this.bar, name).hidden = steps.length < 2;
    }
    this.slider.max = String(steps.length - 1);
    this.slider.value = String(index);
    this.slider.style.setProperty("--share", `${100 * index / Math.max(1, steps.length - 1)}%`);
    label.textContent = stepLabel(steps, step);
    label.title = why ?? "";
    label.classList.toggle("why", Boolean(why));
    findPart(this.bar, "phase").textContent = phase;
  }
  /** @param {boolean} isPlaying */
  showPlaying(isPlaying) {
    const button = findPart(this.bar, "play");
    button.querySelector("path")?.setAttribute("d", isPlaying ? ICONS.pause : ICONS.play);
    button.setAttribute("aria-label", isPlaying ? "Pause" : "Play");
  }
  /** @param {KeyboardEvent} event */
  onKey(event) {
    const target = keyTarget(event), isInside = event.composedPath().includes(this.view.root);
    const isMeant = isInside || !this.view.component.isEmbedded && ignoresKeys(target);
    if (!isMeant || hasModifier(event)) return;
    const action = this.keys[event.key];
    if (!action || target.tagName === "BUTTON" && event.key === " ") return;
    event.preventDefault();
    action();
  }
};
function createIcon(shape) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shape);
  svg.append(path);
  return svg;
}

// src/stepped-view.js
var PLAY_MS = 220;
var REPORT_MS = 250;
var SteppedView = class {
  step = 0;
  serverStep = 0;
  // the step the server sent last
  /** @type {number[]} */
  reported = [];
  // steps that the server has not answered yet
  /** @type {ReturnType<typeof setInterval> | undefined} */
  playTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  reportTimer;
  /** @param {Component} component */
  constructor(component) {
    this.component = component;
  }
  /** @returns {number[]} */
  get steps() {
    throw new Error("a subclass has steps");
  }
  /** @returns {StepBar} */
  get stepBar() {
    throw new Error("a subclass has a step bar");
  }
  /** @param {number} step */
  show(step) {
    this.step = step;
  }
  get index() {
    return Math.max(0, this.steps.indexOf(this.step));
  }
  /** @param {number} index */
  go(index) {
    this.show(this.steps[clampIndex(index, this.steps.length)]);
    this.report();
  }
  toggle() {
    if (this.playTimer !== void 0) {
      this.stop();
      this.report();
      return;
    }
    if (this.index === this.steps.length - 1) this.show(this.steps[0]);
    this.stepBar.showPlaying(true);
    this.playTimer = setInterval(() => {
      if (this.index < this.steps.length - 1) {
        this.show(this.steps[this.index + 1]);
        return;
      }
      this.stop();
      this.report();
    }, PLAY_MS);
  }
  stop() {
    clearInterval(this.playTimer);
    this.playTimer = void 0;
    this.stepBar.showPlaying(false);
  }
  /** Tell the server the step once the user has stopped there. */
  report() {
    clearTimeout(this.reportTimer);
    this.reportTimer = setTimeout(() => {
      if (this.step === (this.reported.at(-1) ?? this.serverStep)) return;
      this.reported.push(this.step);
      this.component.setStateValue("step", this.step);
    }, REPORT_MS);
  }
  /**
   * Go to the server's step, unless it answers a step reported earlier: the user may be further.
   * @param {number} step
   */
  follow(step) {
    const answered = this.reported.indexOf(step);
    if (answered >= 0) this.reported.splice(0, answered + 1);
    else if (step !== this.serverStep) this.step = step;
    this.serverStep = step;
  }
  /**
   * Begin at a step of another head or run.
   * @param {number} step
   */
  restart(step) {
    this.stop();
    clearTimeout(this.reportTimer);
    this.step = this.serverStep = step;
    this.reported = [];
  }
};

// src/text.js
var shownText = (text) => text === "" ? "∅" : text;
function visibleText(text, limit) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("	", "⇥").replaceAll("\r", "␍") || "∅";
  return cut(shown, limit);
}
var cut = (text, limit) => text.length > limit ? text.slice(0, limit - 1) + "…" : text;
var formatCount = (count) => count.toLocaleString("en");
function formatNumber(value) {
  if (value === 0) return "0";
  return Math.abs(value) >= 1e-3 ? Number(value.toPrecision(3)).toString() : value.toExponential(1);
}
function float16(bits) {
  const exponent = bits >> 10 & 31, fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

// src/text-blocks.js
var BLOCK_TOKENS = 256;
var IMMEDIATE_TOKENS = 512;
var FILL_DELAY_MS = 1500;
var FILL_SLICE_MS = 4;
var FILL_PAUSE_MS = 60;
function blockStarts(texts) {
  const starts = [0];
  texts.forEach((text, position) => {
    const length = position + 1 - starts[starts.length - 1];
    if (length >= BLOCK_TOKENS && text.includes("\n") || length >= 8 * BLOCK_TOKENS) starts.push(position + 1);
  });
  if (starts.length > 1 && starts.at(-1) === texts.length) starts.pop();
  return starts;
}
var TextBlocks = class {
  /**
   * `style(span, position)` is called for each word when its element is created and when its code changes (`setCodes`).
   * @param {HTMLElement} panel
   * @param {string[]} texts
   * @param {(span: HTMLElement, position: number) => void} style
   */
  constructor(panel, texts, style) {
    this.texts = texts;
    this.style = style;
    this.spans = new Array(texts.length);
    this.codes = null;
    this.styledCodes = new Uint8Array(texts.length).fill(255);
    this.near = /* @__PURE__ */ new Set();
    this.observer = new IntersectionObserver((entries) => this.onScroll(entries), { root: panel, rootMargin: "800px" });
    this.starts = blockStarts(texts);
    this.nodes = this.starts.map((_, block) => {
      const node = createElement("div", "chunk");
      node.dataset.block = String(block);
      this.observer.observe(node);
      return node;
    });
    panel.replaceChildren(...this.nodes);
    for (let block = 0; block < this.starts.length && this.starts[block] < IMMEDIATE_TOKENS; block++) this.approach(block);
    this.timer = setTimeout(() => this.fillPlain(0), FILL_DELAY_MS);
  }
  dispose() {
    clearTimeout(this.timer);
    this.observer.disconnect();
  }
  /** @param {IntersectionObserverEntry[]} entries */
  onScroll(entries) {
    for (const { isIntersecting, target } of entries) {
      const block = Number(
        /** @type {HTMLElement} */
        target.dataset.block
      );
      if (isIntersecting) this.approach(block);
      else this.near.delete(block);
    }
  }
  /** @param {number} block */
  approach(block) {
    this.near.add(block);
    this.createWords(block);
    this.restyle(block);
  }
  /** @param {number} block */
  stop(block) {
    return this.starts[block + 1] ?? this.texts.length;
  }
  /** @param {number} block */
  createWords(block) {
    const start = this.starts[block];
    if (start >= this.texts.length || this.spans[start]) return;
    const words = document.createDocumentFragment();
    for (let position = start; position < this.stop(block); position++) words.append(this.createWord(position));
    this.nodes[block].replaceChildren(words);
  }
  /** @param {number} position */
  createWord(position) {
    const text = this.texts[position], span = createElement("span", "t", shownText(text));
    span.dataset.p = String(position);
    if (text.includes("\n")) span.dataset.nl = "";
    this.spans[position] = span;
    this.applyStyle(span, position);
    return span;
  }
  /**
   * Set a number below 255 per position that decides the word's style. Only words near the visible area are styled now:
   * a hundred thousand would take as long as everything else that a change does.
   * @param {Vector} codes
   */
  setCodes(codes) {
    this.codes = codes;
    this.near.forEach((block) => this.restyle(block));
  }
  /** @param {number} block */
  restyle(block) {
    if (!this.codes) return;
    for (let position = this.starts[block]; position < this.stop(block); position++) {
      const span = this.spans[position];
      if (span && this.styledCodes[position] !== this.codes[position]) this.applyStyle(span, position);
    }
  }
  /**
   * @param {HTMLElement} span
   * @param {number} position
   */
  applyStyle(span, position) {
    this.style(span, position);
    if (this.codes) this.styledCodes[position] = this.codes[position];
  }
  /**
   * The element of the word at a position, created if necessary; undefined outside the text.
   * @param {number} position
   */
  word(position) {
    if (!this.spans[position] && position >= 0 && position < this.texts.length) {
      this.createWords(this.starts.findLastIndex((start) => start <= position));
    }
    return this.spans[position];
  }
  /**
   * Fill the remaining blocks with plain text, so that the browser's search finds it. In small slices: on a small machine
   * the browser would hold up the server.
   * @param {number} block
   */
  fillPlain(block) {
    const until = performance.now() + FILL_SLICE_MS;
    for (; block < this.starts.length && performance.now() < until; block++) {
      const node = this.nodes[block];
      if (!node.firstChild) node.textContent = this.texts.slice(this.starts[block], this.stop(block)).map(shownText).join("");
    }
    if (block < this.starts.length) this.timer = setTimeout(() => this.fillPlain(block), FILL_PAUSE_MS);
  }
};

// src/tokenstrip/history.js
var UNSEEN = 0;
var SINK = 1;
var RECENT = 2;
var KEPT = 3;
var PIVOT = 4;
var ABSORBED = 5;
var EVICTED = 6;
var STATES = 7;
var SINK_TOKENS = 4;
var NEVER = 2 ** 31 - 1;
var HeadHistory = class {
  #ownersStep = NaN;
  #owners = new Int32Array();
  #votesStep = NaN;
  #votes = new Int32Array();
  /**
   * @param {{ birth: Vector, leave: Vector, death: Vector, absorb: Vector, parent: Vector }} vectors
   * @param {number} tokens
   */
  constructor({ birth, leave, death, absorb, parent }, tokens) {
    this.tokens = tokens;
    this.birth = withoutNever(birth);
    this.leave = withoutNever(leave);
    this.death = withoutNever(death);
    this.absorb = withoutNever(absorb);
    this.parent = parent;
  }
  /**
   * The state of every token at a step.
   * @param {number} step
   */
  statesAt(step) {
    const { birth, leave, death, absorb, tokens } = this;
    let firstGap = -1, lastGap = -1;
    for (let t = 0; t < tokens; t++) {
      if (leave[t] > step) continue;
      if (firstGap < 0) firstGap = t;
      lastGap = t;
    }
    const sinkStop = firstGap < 0 ? 0 : Math.min(firstGap, SINK_TOKENS);
    const recentStart = firstGap < 0 ? tokens : lastGap + 1;
    const states = new Uint8Array(tokens);
    for (let t = 0; t < tokens; t++) {
      if (birth[t] > step) states[t] = UNSEEN;
      else if (death[t] <= step) states[t] = EVICTED;
      else if (leave[t] <= step) states[t] = ABSORBED;
      else if (absorb[t] <= step) states[t] = PIVOT;
      else states[t] = t < sinkStop ? SINK : t >= recentStart ? RECENT : KEPT;
    }
    return states;
  }
  /**
   * Per token the slot that holds it at a step, or -1.
   * @param {number} step
   */
  ownersAt(step) {
    if (this.#ownersStep === step) return this.#owners;
    const owners = new Int32Array(this.tokens);
    for (let t = 0; t < this.tokens; t++) {
      let slot = t;
      while (this.leave[slot] <= step && this.parent[slot] >= 0) slot = this.parent[slot];
      owners[t] = this.birth[t] > step || this.death[t] <= step ? -1 : slot;
    }
    this.#ownersStep = step;
    this.#owners = owners;
    return owners;
  }
  /**
   * Per slot the number of tokens it holds at a step.
   * @param {number} step
   */
  votesAt(step) {
    if (this.#votesStep === step) return this.#votes;
    const votes = new Int32Array(this.tokens);
    for (const owner of this.ownersAt(step)) if (owner >= 0) votes[owner]++;
    this.#votesStep = step;
    this.#votes = votes;
    return votes;
  }
};
function withoutNever(vector) {
  const steps = new Int32Array(vector);
  for (let t = 0; t < steps.length; t++) if (steps[t] === -1) steps[t] = NEVER;
  return steps;
}
function slotsOf(states) {
  const slots = [];
  for (let t = 0; t < states.length; t++) if (states[t] >= SINK && states[t] <= PIVOT) slots.push(t);
  return slots;
}
function countStates(states) {
  const counts = new Array(STATES).fill(0);
  for (const state of states) counts[state]++;
  return counts;
}

// src/canvas.js
function sizeCanvas(canvas, height, width = canvas.clientWidth) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = context2d(canvas);
  context.scale(ratio, ratio);
  return { context, width, height };
}
function context2d(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no 2D canvas");
  return (
    /** @type {Canvas extends HTMLCanvasElement ? CanvasRenderingContext2D : OffscreenCanvasRenderingContext2D} */
    context
  );
}
var rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
var pixelOf = (hex) => new Uint32Array(Uint8Array.of(...rgb(hex), 255).buffer)[0];
function pixelCanvas(width, height, fill) {
  const image = new ImageData(width, height), canvas = new OffscreenCanvas(width, height);
  fill(new Uint32Array(image.data.buffer));
  context2d(canvas).putImageData(image, 0, 0);
  return canvas;
}

// src/tokenstrip/mosaic.js
var HEIGHT = 150;
var SINGLE_STEP_HEIGHT = 24;
var Mosaic = class {
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
    this.playhead.style.left = `${100 * (index + 0.5) / steps}%`;
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
      index: clampIndex(Math.floor((event.clientX - box.left) / box.width * steps), steps),
      position: clampIndex(Math.floor((event.clientY - box.top) / box.height * tokens), tokens)
    };
  }
};

// src/tokenstrip/slot-grid.js
var MAX_HEIGHT = 400;
var MAX_CELL = 22;
var MIN_CELL = 3;
var MIN_VOTES_CELL = 14;
function gridLayout(count, width) {
  let size = MAX_CELL;
  while (size > MIN_CELL && Math.ceil(count / Math.floor(width / size)) * size > MAX_HEIGHT) size--;
  const across = Math.max(1, Math.floor(width / size)), gap = size > 6 ? 2 : size > 4 ? 1 : 0;
  return { size, side: size - gap, across, height: Math.max(size, Math.ceil(count / across) * size) };
}
var SlotGrid = class {
  /** @type {Slots | null} */
  content = null;
  /** @type {number | null} */
  lit = null;
  paintedKey = "";
  layout = gridLayout(0, 0);
  width = 0;
  /** @type {OffscreenCanvas | null} */
  cells = null;
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
  }
  /** Draw the content with the slot `lit` outlined. Cells are painted only when they changed, so that hovering is fast. */
  draw() {
    const width = this.canvas.clientWidth;
    if (!this.content || !width) return;
    const key = `${width}/${window.devicePixelRatio}/${this.content.key}`;
    if (key !== this.paintedKey || !this.cells) this.cells = this.paint(this.content, width);
    this.paintedKey = key;
    this.drawCells(this.content, this.cells);
  }
  /**
   * @param {Slots} content
   * @param {number} width
   */
  paint(content, width) {
    this.layout = gridLayout(content.slots.length, width);
    this.width = width;
    const { canvas } = this, { size, height } = this.layout;
    sizeCanvas(canvas, height);
    const cells = pixelCanvas(canvas.width, canvas.height, (pixels) => this.paintCells(pixels, content));
    const context = context2d(cells);
    context.scale(canvas.width / width, canvas.height / height);
    if (size >= MIN_VOTES_CELL) this.writeVotes(context, content);
    return cells;
  }
  /**
   * Pixel by pixel: a hundred thousand calls of `fillRect` take a tenth of a second.
   * @param {Uint32Array} pixels
   * @param {Slots} content
   */
  paintCells(pixels, { slots, states, colours }) {
    const { size, side, across, height } = this.layout, width = this.canvas.width, words = colours.map(pixelOf);
    const ratioX = width / this.width, ratioY = this.canvas.height / height;
    for (let first = 0; first < slots.length; first += across) {
      const y = first / across * size, top = Math.round(y * ratioY) * width, bottom = Math.round((y + side) * ratioY) * width;
      const stop = Math.min(across, slots.length - first);
      for (let column = 0; column < stop; column++) {
        const x = column * size, colour = words[states[slots[first + column]]];
        pixels.fill(colour, top + Math.round(x * ratioX), top + Math.round((x + side) * ratioX));
      }
      for (let row = top + width; row < bottom; row += width) pixels.copyWithin(row, top, top + width);
    }
  }
  /**
   * @param {OffscreenCanvasRenderingContext2D} context
   * @param {Slots} content
   */
  writeVotes(context, { slots, votes, paper }) {
    const { size, side } = this.layout, counts = votes();
    context.fillStyle = paper;
    context.font = `600 ${Math.min(10, size - 8)}px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    slots.forEach((slot, index) => {
      const [x, y] = this.corner(index), count = counts[slot];
      if (count > 1) context.fillText(count > 99 ? "99+" : String(count), x + side / 2, y + side / 2 + 0.5);
    });
  }
  /**
   * @param {Slots} content
   * @param {OffscreenCanvas} cells
   */
  drawCells({ slots, ink }, cells) {
    const context = context2d(this.canvas), { side, height } = this.layout;
    context.clearRect(0, 0, this.width, height);
    context.drawImage(cells, 0, 0, this.width, height);
    const index = this.lit === null ? -1 : slots.indexOf(this.lit);
    if (index < 0) return;
    const [x, y] = this.corner(index);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }
  /** @param {number} index */
  corner(index) {
    const { size, across } = this.layout;
    return [index % across * size, Math.floor(index / across) * size];
  }
  /**
   * The slot under the pointer, or null.
   * @param {MouseEvent} event
   */
  slotAt(event) {
    if (!this.content || !this.cells) return null;
    const box = this.canvas.getBoundingClientRect(), { size, across } = this.layout;
    const column = Math.floor((event.clientX - box.left) / size), row = Math.floor((event.clientY - box.top) / size);
    return column < across ? this.content.slots[row * across + column] ?? null : null;
  }
};

// src/tokenstrip/token-facts.js
var TEXT_LIMIT = 24;
var shortText = (text) => visibleText(text ?? "", TEXT_LIMIT);
function tokenFacts(head, position) {
  const { history, step, states, texts, labels } = head;
  const state = states[position], owner = history.ownersAt(step)[position], parent = history.parent[position];
  const facts = [];
  if (state === UNSEEN) facts.push(`read at step ${history.birth[position]}`);
  if (state === ABSORBED) {
    facts.push(`went into slot ${parent} “${shortText(texts[parent])}” at step ${history.leave[position]}`);
    if (owner !== parent) facts.push(`now part of slot ${owner} “${shortText(texts[owner])}”`);
  }
  if (state === EVICTED) facts.push(lossFact(history, position));
  if (owner >= 0) facts.push(slotFact(history, step, owner));
  if (state !== UNSEEN) facts.push(massFact(head, position, owner));
  return [
    [`${position} “${shortText(texts[position])}”`, labels[state]],
    ...facts.map((fact) => (
      /** @type {[string, string]} */
      ["", fact]
    ))
  ];
}
function lossFact({ leave, death, parent }, position) {
  const lostAt = death[position];
  if (lostAt === leave[position]) return `its slot was evicted at step ${lostAt}`;
  return `went into slot ${parent[position]} at step ${leave[position]}, which was evicted with it at step ${lostAt}`;
}
function slotFact(history, step, slot) {
  const votes = history.votesAt(step)[slot];
  if (votes === 1) return "its slot stands for itself alone";
  return `slot ${slot} stands for ${votes} tokens since step ${history.absorb[slot]}`;
}
function massFact({ masses, step }, position, owner) {
  if (masses?.step !== step) return "";
  const parts = [`true mass ${formatNumber(float16(masses.trueMass[position]))}`];
  if (owner >= 0) parts.push(`its slot receives ${formatNumber(float16(masses.slotMass[owner]))}`);
  return parts.join(", ");
}

// src/tokenstrip/token-strip.js
var HINT = "Hover a word, a slot or the mosaic to see its fate; click to see what flowed into its slot.";
var TokenStrip = class extends SteppedView {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {Set<number>} */
  lit = /* @__PURE__ */ new Set();
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
    this.grid = new SlotGrid(
      /** @type {HTMLCanvasElement} */
      findPart(this.root, "grid")
    );
    this.mosaic = new Mosaic(
      /** @type {HTMLCanvasElement} */
      findPart(this.root, "mosaic"),
      findPart(this.root, "playhead")
    );
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
    const counts = countStates(this.states), slots = slotsOf(this.states), read2 = this.tokens - counts[UNSEEN];
    this.drawLegend(counts);
    this.grid.content = {
      key: [this.identity, step, this.colours, data.paper].join("/"),
      slots,
      states: this.states,
      votes: () => this.history.votesAt(step),
      colours: this.colours,
      paper: data.paper,
      ink: data.ink
    };
    this.grid.draw();
    this.mosaic.movePlayhead(this.index, this.steps.length);
    const reading = step === 0 ? "the prompt was read" : `after token ${read2 - 1} “${shortText(texts[read2 - 1])}”`;
    const phase = data.phases?.[this.index] ?? reading;
    this.bar.show(step === data.step ? data.why : "", `${phase}: ${formatCount(slots.length)} slots for ${formatCount(read2)} tokens`);
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
      ...bold ? [createElement("strong", "", bold)] : [],
      ...plain ? [createElement("span", "", plain)] : []
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
    if (selected === null || selected === void 0 || selected >= this.tokens) this.showDetail([["", HINT]]);
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
    if (slot !== null) this.owners.forEach((owner, token) => {
      if (owner === slot) this.lit.add(token);
    });
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
};
function isSameText(texts, others) {
  return texts === others || texts.length === others.length && texts.every((text, position) => text === others[position]);
}

// src/components/tokenstrip.js
var tokenstrip_default = mount(TokenStrip, deliverWithShared);
export {
  tokenstrip_default as default
};
