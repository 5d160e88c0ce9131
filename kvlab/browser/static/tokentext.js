// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/canvas.js src/components/tokentext.js src/dom.js src/linked-charts.js src/mount.js src/payload.js src/plotly-charts.js src/shared-data.js src/text-blocks.js src/text.js src/tokentext.js
// SHA-256 of the sources: 2e266aa5bd0e43421fb42dac3282ef94b33e571500220612b564305a4708acb4
// SHA-256 of the code: b31527cf098409a5d42e7ebc7e3196140c65702e53aeba8e355be662b1076d07
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

// src/text.js
var shownText = (text) => text === "" ? "∅" : text;
function visibleText(text, limit) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("	", "⇥").replaceAll("\r", "␍") || "∅";
  return cut(shown, limit);
}
var cut = (text, limit) => text.length > limit ? text.slice(0, limit - 1) + "…" : text;
var formatCount = (count) => count.toLocaleString("en");

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

// src/tokentext.js
var MAP_HEIGHT = 16;
var TEXT_LIMIT = 32;
var UNCODED = 255;
function columnCodes(codes, columns) {
  const counts = new Uint32Array(256), edge = (column) => Math.floor(column * codes.length / columns);
  return Array.from({ length: columns }, (_, column) => {
    counts.fill(0);
    for (let at = edge(column); at < edge(column + 1); at++) counts[codes[at]]++;
    return counts.indexOf(Math.max(...counts));
  });
}
function chosenSpan(chosen, position, extend) {
  const from = extend && chosen ? chosen[0] : position;
  return [Math.min(from, position), Math.max(from, position)];
}
var TokenText = class {
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
    this.map = /** @type {HTMLCanvasElement} */
    findPart(this.root, "map");
    this.charts = new LinkedCharts((position, chart) => this.onHoverChart(position, chart), () => this.dim());
    this.codes = [];
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
      context.fillRect(column * width / columns, 0, Math.ceil(width / columns) + 0.5, height);
    });
  }
  /** @param {MouseEvent} event */
  jump(event) {
    const box = this.map.getBoundingClientRect();
    this.scrollTo(Math.floor((event.clientX - box.left) / box.width * this.data.texts.length));
  }
  /** @param {number} position */
  scrollTo(position) {
    const { panel } = this, word = this.blocks?.word(position);
    if (!word) return;
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
    this.lit = void 0;
    this.charts.unmark();
    this.showDetail("", this.data.hint);
  }
  /**
   * @param {string} bold
   * @param {string} plain
   */
  showDetail(bold, plain) {
    const parts = [...bold ? [createElement("strong", "", bold)] : [], createElement("span", "", plain)];
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
};

// src/components/tokentext.js
var tokentext_default = mount(TokenText, deliverWithShared);
export {
  tokentext_default as default
};
