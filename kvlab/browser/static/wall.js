// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/canvas.js src/components/wall.js src/dom.js src/keyboard.js src/mount.js src/payload.js src/shared-data.js src/step-bar.js src/stepped-view.js src/steps.js src/text.js src/wall/cache-wall.js src/wall/cells.js src/wall/geometry.js src/wall/marks.js src/wall/painter.js
// SHA-256 of the sources: 996ac58a04748029c583d91a74396a10224e87760c43b3959fe1a22465c9766c
// SHA-256 of the code: 81c65f2cf02d4130d5282d2623af30a1b4601ada4636bb455e83e8cb8bd66bbf
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
var rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
var pixelOf = (hex) => new Uint32Array(Uint8Array.of(...rgb(hex), 255).buffer)[0];

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
var formatCount = (count) => count.toLocaleString("en");

// src/wall/cells.js
var HOLDS = 1;
var DROPPED = 3;
var UNSEEN = 4;
var ONLY_A = 1;
var ONLY_B = 2;
var CODES = 5;
var RunCells = class {
  index = -1;
  // nothing is read
  /**
   * @param {WallData} data
   * @param {number} heads of all layers
   */
  constructor(data, heads) {
    this.data = data;
    this.heads = heads;
    this.tokens = data.readBy[data.readBy.length - 1];
    this.first = unpackFates(data.first, heads * this.tokens);
    this.codes = new Uint8Array(heads * this.tokens).fill(UNSEEN);
    this.before = new Uint8Array(data.changeFates.length);
    this.totals = new Array(CODES).fill(0);
    this.totals[UNSEEN] = this.codes.length;
  }
  /**
   * Move to the step at `index`; `onChange` is called for every cell that changes.
   * @param {number} index
   * @param {OnChange} [onChange]
   */
  go(index, onChange) {
    while (this.index < index) this.forward(onChange);
    while (this.index > index) this.back(onChange);
  }
  /** @param {OnChange} [onChange] */
  forward(onChange) {
    const { codes, first, before, tokens, data: { readBy, changesBy, changeCells, changeFates } } = this;
    const index = ++this.index, from = readBy[index - 1] ?? 0, to = readBy[index];
    for (let head = 0; head < this.heads; head++) {
      const start = head * tokens;
      codes.set(first.subarray(start + from, start + to), start + from);
    }
    this.countRead(from, to, 1);
    if (onChange) this.announce(from, to, onChange);
    for (let change = changesBy[index - 1] ?? 0; change < changesBy[index]; change++) {
      const cell = changeCells[change];
      before[change] = codes[cell];
      this.set(cell, changeFates[change]);
      onChange?.(cell);
    }
  }
  /** @param {OnChange} [onChange] */
  back(onChange) {
    const { before, tokens, index, data: { readBy, changesBy, changeCells } } = this;
    const from = readBy[index - 1] ?? 0, to = readBy[index];
    for (let change = changesBy[index] - 1; change >= (changesBy[index - 1] ?? 0); change--) {
      this.set(changeCells[change], before[change]);
      onChange?.(changeCells[change]);
    }
    this.countRead(from, to, -1);
    for (let head = 0; head < this.heads; head++) this.codes.fill(UNSEEN, head * tokens + from, head * tokens + to);
    if (onChange) this.announce(from, to, onChange);
    this.index--;
  }
  /**
   * @param {number} cell
   * @param {number} code
   */
  set(cell, code) {
    this.totals[this.codes[cell]]--;
    this.totals[code]++;
    this.codes[cell] = code;
  }
  /**
   * Count tokens as read (`sign` 1) or as unread again (-1).
   * @param {number} from
   * @param {number} to
   * @param {number} sign
   */
  countRead(from, to, sign) {
    const { codes, tokens, totals } = this;
    for (let head = 0; head < this.heads; head++) {
      for (let cell = head * tokens + from; cell < head * tokens + to; cell++) totals[codes[cell]] += sign;
    }
    totals[UNSEEN] -= sign * this.heads * (to - from);
  }
  /**
   * @param {number} from
   * @param {number} to
   * @param {OnChange} onChange
   */
  announce(from, to, onChange) {
    for (let head = 0; head < this.heads; head++) {
      for (let position = from; position < to; position++) onChange(head * this.tokens + position);
    }
  }
};
var DifferenceCells = class {
  /**
   * @param {RunCells} a
   * @param {RunCells} b
   */
  constructor(a, b) {
    this.a = a;
    this.b = b;
    this.heads = a.heads;
    this.tokens = a.tokens;
    this.codes = new Uint8Array(a.codes.length);
    this.totals = new Array(CODES).fill(0);
    this.totals[0] = this.codes.length;
    for (let cell = 0; cell < this.codes.length; cell++) this.update(cell);
  }
  get index() {
    return this.a.index;
  }
  /**
   * @param {number} index
   * @param {OnChange} [onChange]
   */
  go(index, onChange) {
    const update = (cell) => {
      this.update(cell);
      onChange?.(cell);
    };
    this.a.go(index, update);
    this.b.go(index, update);
  }
  /** @param {number} cell */
  update(cell) {
    const a = this.a.codes[cell], b = this.b.codes[cell];
    const code = a === UNSEEN || b === UNSEEN ? UNSEEN : (a > HOLDS ? ONLY_B : 0) + (b > HOLDS ? ONLY_A : 0);
    this.totals[this.codes[cell]]--;
    this.totals[code]++;
    this.codes[cell] = code;
  }
};
function changedAt({ changesBy, changeCells }, cell, index) {
  for (let at = index; at >= 0; at--) {
    for (let change = changesBy[at] - 1; change >= (changesBy[at - 1] ?? 0); change--) if (changeCells[change] === cell) return at;
  }
  return -1;
}
function unpackFates(packed, count) {
  const fates = new Uint8Array(count);
  for (let cell = 0; cell < count; cell++) fates[cell] = packed[cell >> 2] >> 2 * (cell & 3) & 3;
  return fates;
}
function countCodes({ codes, tokens }, heads) {
  const counts = new Array(CODES).fill(0);
  for (const head of heads) {
    for (let cell = head * tokens; cell < (head + 1) * tokens; cell++) counts[codes[cell]]++;
  }
  return counts;
}

// src/wall/geometry.js
var MARGIN = { left: 34, top: 20, right: 2, bottom: 2 };
var LEAST_HEIGHT = 300;
var MOST_HEIGHT = 500;
var CELL_ASPECT = 2.5;
var LARGEST_CELL = 150;
var Grid = class {
  /**
   * @param {number} layers
   * @param {number} heads of a layer
   * @param {number} tokens
   * @param {number} width of the canvas
   */
  constructor(layers, heads, tokens, width) {
    this.layers = layers;
    this.heads = heads;
    this.tokens = tokens;
    this.left = MARGIN.left;
    this.top = MARGIN.top;
    this.width = Math.max(1, width - MARGIN.left - MARGIN.right);
    this.pitchX = this.width / layers;
    this.height = Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, heads * this.pitchX));
    this.pitchY = this.height / heads;
    const gap = Math.min(6, Math.max(1, Math.min(this.pitchX, this.pitchY) * 0.06));
    this.tileWidth = this.pitchX - gap;
    this.tileHeight = this.pitchY - gap;
    this.perLine = Math.max(1, Math.round(Math.sqrt(tokens * this.tileWidth / (this.tileHeight * CELL_ASPECT))));
    this.lines = Math.ceil(tokens / this.perLine);
  }
  get canvasHeight() {
    return this.height + MARGIN.top + MARGIN.bottom;
  }
  get largestScale() {
    return Math.max(1, LARGEST_CELL / (this.tileWidth / this.perLine));
  }
  /** @returns {View} */
  get whole() {
    return { x: 0, y: 0, scale: 1 };
  }
  /**
   * The view moved so that it lies within the wall.
   * @param {View} view
   */
  clamp({ x, y, scale }) {
    const bounded = Math.max(1, Math.min(this.largestScale, scale));
    const limit = (at, size) => Math.max(0, Math.min(size - size / bounded, at));
    return { x: limit(x, this.width), y: limit(y, this.height), scale: bounded };
  }
  /**
   * The view scaled by `factor` around a canvas point.
   * @param {View} view
   * @param {number} factor
   * @param {number} x
   * @param {number} y
   */
  zoomed(view, factor, x, y) {
    const scale = Math.max(1, Math.min(this.largestScale, view.scale * factor));
    const atX = view.x + (x - this.left) / view.scale, atY = view.y + (y - this.top) / view.scale;
    return this.clamp({ x: atX - (x - this.left) / scale, y: atY - (y - this.top) / scale, scale });
  }
  /**
   * The view that shows one tile as large as possible.
   * @param {number} head index over all layers
   */
  viewOf(head) {
    const { layer, row } = this.placeOf(head), scale = Math.min(this.width / this.pitchX, this.height / this.pitchY);
    const x = (layer + 0.5) * this.pitchX - this.width / scale / 2, y = (row + 0.5) * this.pitchY - this.height / scale / 2;
    return this.clamp({ x, y, scale });
  }
  /** @param {number} head */
  placeOf(head) {
    return { layer: Math.floor(head / this.heads), row: head % this.heads };
  }
  /**
   * @param {number} head
   * @param {View} view
   * @returns {Box}
   */
  tileBox(head, { x, y, scale }) {
    const { layer, row } = this.placeOf(head);
    return {
      x: this.left + (layer * this.pitchX - x) * scale,
      y: this.top + (row * this.pitchY - y) * scale,
      width: this.tileWidth * scale,
      height: this.tileHeight * scale
    };
  }
  /**
   * @param {number} head
   * @param {number} position
   * @param {View} view
   * @returns {Box}
   */
  cellBox(head, position, view) {
    const tile = this.tileBox(head, view), width = tile.width / this.perLine, height = tile.height / this.lines;
    return {
      x: tile.x + position % this.perLine * width,
      y: tile.y + Math.floor(position / this.perLine) * height,
      width,
      height
    };
  }
  /**
   * Heads whose tiles are in view.
   * @param {View} view
   */
  visibleHeads(view) {
    const range = (start, size, pitch, count) => {
      return [Math.floor(start / pitch), Math.min(count - 1, Math.floor((start + size / view.scale - 1e-6) / pitch))];
    };
    const [firstLayer, lastLayer] = range(view.x, this.width, this.pitchX, this.layers);
    const [firstRow, lastRow] = range(view.y, this.height, this.pitchY, this.heads);
    const heads = [];
    for (let layer = firstLayer; layer <= lastLayer; layer++) {
      for (let row = firstRow; row <= lastRow; row++) heads.push(layer * this.heads + row);
    }
    return heads;
  }
  /**
   * The head and position under a canvas point; position is -1 beyond the text, null outside all tiles.
   * @param {number} x
   * @param {number} y
   * @param {View} view
   */
  cellAt(x, y, view) {
    const atX = (x - this.left) / view.scale + view.x, atY = (y - this.top) / view.scale + view.y;
    if (x < this.left || y < this.top || atX >= this.width || atY >= this.height) return null;
    const layer = Math.floor(atX / this.pitchX), row = Math.floor(atY / this.pitchY);
    const inX = atX - layer * this.pitchX, inY = atY - row * this.pitchY;
    if (inX >= this.tileWidth || inY >= this.tileHeight) return null;
    const column = Math.floor(inX / this.tileWidth * this.perLine), line = Math.floor(inY / this.tileHeight * this.lines);
    const position = line * this.perLine + column;
    return { head: layer * this.heads + row, position: position < this.tokens ? position : -1 };
  }
};
function pixelEdges(count, from, size, limit) {
  const start = Math.max(0, Math.round(from)), stop = Math.max(start, Math.min(limit, Math.round(from + size)));
  const edges = new Int32Array(2 * (stop - start)), perPixel = count / size;
  for (let pixel = start; pixel < stop; pixel++) {
    const first = Math.max(0, Math.min(count - 1, Math.floor((pixel - from) * perPixel)));
    const next = Math.min(count, Math.floor((pixel + 1 - from) * perPixel));
    edges[2 * (pixel - start)] = first;
    edges[2 * (pixel - start) + 1] = Math.max(first + 1, next);
  }
  return { start, stop, edges, from, pitch: size / count };
}
function pixelsOf({ start, stop, edges, from, pitch }, item) {
  const near = Math.floor(from + item * pitch) - 1 - start, far = Math.ceil(from + (item + 1) * pitch) + 1 - start;
  const pixels = [];
  for (let pixel = Math.max(0, near); pixel <= Math.min(stop - start - 1, far); pixel++) {
    if (edges[2 * pixel] <= item && item < edges[2 * pixel + 1]) pixels.push(pixel);
  }
  return pixels;
}

// src/wall/marks.js
var TEXT_WIDTH = 30;
var TEXT_HEIGHT = 12;
var CHARACTER = 6.6;
function drawMarks(context, marks, fontFamily) {
  const { grid, view } = marks, heads = grid.visibleHeads(view);
  context.save();
  context.beginPath();
  context.rect(grid.left, grid.top, grid.width, grid.height);
  context.clip();
  drawWords(context, marks, heads, fontFamily);
  drawFacts(context, marks, heads);
  drawReads(context, marks);
  drawToken(context, marks, heads);
  drawHeads(context, marks);
  context.restore();
  drawAxes(context, marks, fontFamily);
}
function drawWords(context, { grid, view, texts, paper, wordColour }, heads, fontFamily) {
  const cell = grid.cellBox(heads[0] ?? 0, 0, view);
  if (cell.width < TEXT_WIDTH || cell.height < TEXT_HEIGHT) return;
  const most = Math.floor((cell.width - 4) / CHARACTER), size = Math.min(13, cell.height - 2);
  context.font = `${size}px ${fontFamily}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const head of heads) {
    for (const position of positionsInView(grid, head, view)) {
      const box = grid.cellBox(head, position, view);
      context.strokeStyle = paper;
      context.lineWidth = 1;
      context.strokeRect(box.x, box.y, box.width, box.height);
      context.fillStyle = wordColour(head * grid.tokens + position);
      context.fillText(shortened(texts[position] ?? "", most), box.x + 3, box.y + box.height / 2 + 0.5);
    }
  }
}
function* positionsInView(grid, head, view) {
  const tile = grid.tileBox(head, view), width = tile.width / grid.perLine, height = tile.height / grid.lines;
  const first = Math.max(0, Math.floor((grid.top - tile.y) / height)), last = Math.min(grid.lines - 1, Math.floor((grid.top + grid.height - tile.y) / height));
  const left = Math.max(0, Math.floor((grid.left - tile.x) / width)), right = Math.min(grid.perLine - 1, Math.floor((grid.left + grid.width - tile.x) / width));
  for (let line = first; line <= last; line++) {
    for (let column = left; column <= right; column++) {
      const position = line * grid.perLine + column;
      if (position < grid.tokens) yield position;
    }
  }
}
function shortened(text, most) {
  const visible = text.replaceAll("\n", "⏎").trim() || "␣";
  return visible.length > most ? `${visible.slice(0, Math.max(1, most - 1))}…` : visible;
}
function drawFacts(context, { grid, view, facts, factColour, paper }, heads) {
  for (const head of heads) {
    for (const [first, last] of facts) {
      for (let from = first; from <= last; ) {
        const to = Math.min(last, from - from % grid.perLine + grid.perLine - 1);
        strokeAround(context, span(grid.cellBox(head, from, view), grid.cellBox(head, to, view)), factColour, paper);
        from = to + 1;
      }
    }
  }
}
var span = (first, last) => ({ ...first, width: last.x + last.width - first.x });
function strokeAround(context, box, colour, paper) {
  const width = Math.max(3, box.width), height = Math.max(3, box.height);
  const x = box.x + box.width / 2 - width / 2, y = box.y + box.height / 2 - height / 2;
  context.strokeStyle = paper;
  context.lineWidth = 3;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}
function drawReads(context, { grid, view, reads, ink, paper }) {
  const side = Math.min(grid.tileWidth, grid.tileHeight) * view.scale, largest = Math.max(1, Math.min(5, side / 10));
  for (const { head, position, mass } of reads) {
    const box = grid.cellBox(head, position, view), radius = Math.max(0.8, largest * Math.sqrt(mass));
    const x = Math.max(box.x + radius, box.x + box.width - 2 - radius), y = box.y + box.height / 2;
    context.beginPath();
    context.arc(box.width > TEXT_WIDTH ? x : box.x + box.width / 2, y, radius, 0, 2 * Math.PI);
    context.fillStyle = ink;
    context.fill();
    if (radius < 1.5) continue;
    context.strokeStyle = paper;
    context.lineWidth = 0.8;
    context.stroke();
  }
}
function drawToken(context, { grid, view, token, ink, paper }, heads) {
  if (token === null || token >= grid.tokens) return;
  for (const head of heads) strokeAround(context, grid.cellBox(head, token, view), ink, paper);
}
function drawHeads(context, { grid, view, focus, selection, focusColour, ink }) {
  const stroke = (head, colour, width) => {
    const box = grid.tileBox(head, view);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(box.x - 1, box.y - 1, box.width + 2, box.height + 2);
  };
  for (const head of selection) stroke(head, ink, 1.5);
  if (focus !== null) stroke(focus, focusColour, 2.5);
}
function drawAxes(context, { grid, view, layers, quiet }, fontFamily) {
  context.font = `11px ${fontFamily}`;
  context.fillStyle = quiet;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText("layer", 0, grid.top / 2);
  context.textAlign = "center";
  const everyLayer = Math.max(1, Math.ceil(22 / (grid.pitchX * view.scale)));
  for (let layer = 0; layer < grid.layers; layer += everyLayer) {
    const box = grid.tileBox(layer * grid.heads, view), x = middleInView(box.x, box.width, grid.left, grid.width);
    if (x !== null) context.fillText(String(layers[layer]), x, grid.top / 2);
  }
  const everyHead = Math.max(1, Math.ceil(14 / (grid.pitchY * view.scale)));
  context.textAlign = "right";
  for (let row = 0; row < grid.heads; row += everyHead) {
    const box = grid.tileBox(row, view), y = middleInView(box.y, box.height, grid.top, grid.height);
    if (y !== null) context.fillText(String(row), grid.left - 6, y);
  }
  context.save();
  context.translate(7, grid.top + grid.height / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.fillText("KV head", 0, 0);
  context.restore();
}
function middleInView(start, size, from, reach) {
  const first = Math.max(start, from), last = Math.min(start + size, from + reach);
  return last - first < Math.min(size, 12) ? null : (first + last) / 2;
}

// src/wall/painter.js
var WallPainter = class {
  canvas = new OffscreenCanvas(1, 1);
  image = new ImageData(1, 1);
  counts = new Int32Array(CODES);
  /**
   * Paint all tiles in view.
   * @param {Grid} grid
   * @param {View} view
   * @param {Cells} cells
   * @param {string[]} colours by code
   * @param {number} ratio device pixels in a canvas pixel
   */
  paint(grid, view, cells, colours, ratio) {
    const width = Math.max(1, Math.round(grid.width * ratio)), height = Math.max(1, Math.round(grid.height * ratio));
    if (this.image.width !== width || this.image.height !== height) {
      this.canvas = new OffscreenCanvas(width, height);
      this.image = new ImageData(width, height);
    }
    this.pixels = new Uint32Array(this.image.data.buffer).fill(0);
    this.grid = grid;
    this.view = view;
    this.cells = cells;
    this.words = colours.map(pixelOf);
    this.channels = colours.map(rgb);
    this.columns = /* @__PURE__ */ new Map();
    this.rows = /* @__PURE__ */ new Map();
    for (const head of grid.visibleHeads(view)) {
      const { layer, row } = grid.placeOf(head), box = grid.tileBox(head, view);
      if (!this.columns.has(layer)) {
        this.columns.set(layer, pixelEdges(grid.perLine, (box.x - grid.left) * ratio, box.width * ratio, width));
      }
      if (!this.rows.has(row)) {
        this.rows.set(row, pixelEdges(grid.lines, (box.y - grid.top) * ratio, box.height * ratio, height));
      }
      this.paintTile(head);
    }
    context2d(this.canvas).putImageData(this.image, 0, 0);
  }
  /**
   * Paint some cells again whose codes have changed.
   * @param {Iterable<number>} changed
   */
  repaint(changed) {
    const { grid, cells } = this;
    if (!grid || !cells) return;
    for (const cell of changed) {
      const head = Math.floor(cell / cells.tokens), position = cell % cells.tokens, { layer, row } = grid.placeOf(head);
      const columns = this.columns?.get(layer), rows = this.rows?.get(row);
      if (!columns || !rows) continue;
      for (const y of pixelsOf(rows, Math.floor(position / grid.perLine))) {
        for (const x of pixelsOf(columns, position % grid.perLine)) this.paintPixel(head, columns, rows, x, y);
      }
    }
    context2d(this.canvas).putImageData(this.image, 0, 0);
  }
  /** @param {number} head */
  paintTile(head) {
    const { layer, row } = (
      /** @type {Grid} */
      this.grid.placeOf(head)
    );
    const columns = this.columns?.get(layer), rows = this.rows?.get(row);
    if (!columns || !rows) return;
    for (let y = 0; y < rows.stop - rows.start; y++) {
      for (let x = 0; x < columns.stop - columns.start; x++) this.paintPixel(head, columns, rows, x, y);
    }
  }
  /**
   * @param {number} head
   * @param {ReturnType<typeof pixelEdges>} columns
   * @param {ReturnType<typeof pixelEdges>} rows
   * @param {number} x
   * @param {number} y
   */
  paintPixel(head, columns, rows, x, y) {
    const { pixels, words, counts } = this, { codes, tokens } = (
      /** @type {Cells} */
      this.cells
    );
    const { perLine } = (
      /** @type {Grid} */
      this.grid
    );
    if (!pixels || !words) return;
    const left = columns.edges[2 * x], right = columns.edges[2 * x + 1], top = rows.edges[2 * y], bottom = rows.edges[2 * y + 1];
    const at = (rows.start + y) * this.image.width + columns.start + x, start = head * tokens;
    if (right - left === 1 && bottom - top === 1) {
      const position = top * perLine + left;
      pixels[at] = position < tokens ? words[codes[start + position]] : 0;
      return;
    }
    counts.fill(0);
    for (let line = top; line < bottom; line++) {
      const stop = start + Math.min(tokens, line * perLine + right);
      for (let cell = start + line * perLine + left; cell < stop; cell++) counts[codes[cell]]++;
    }
    pixels[at] = this.mixed();
  }
  /**
   * The colour of a pixel with `counts` cells of each code. What is held is drawn stronger than its share (by the square
   * root), so that one kept token among many does not vanish.
   */
  mixed() {
    const { counts, channels, words } = this;
    if (!channels || !words) return 0;
    let held = 0, others = 0;
    for (let code = 0; code < DROPPED; code++) held += counts[code];
    for (let code = DROPPED; code < CODES; code++) others += counts[code];
    const all = held + others;
    if (!all) return 0;
    for (let code = 0; code < CODES; code++) if (counts[code] === all) return words[code];
    const strength = Math.sqrt(held / all);
    let colour = 255 << 24;
    for (let channel = 0; channel < 3; channel++) {
      let ofHeld = 0, ofOthers = 0;
      for (let code = 0; code < DROPPED; code++) ofHeld += counts[code] * channels[code][channel];
      for (let code = DROPPED; code < CODES; code++) ofOthers += counts[code] * channels[code][channel];
      const value = (held ? strength * ofHeld / held : 0) + (others ? (1 - strength) * ofOthers / others : 0);
      colour |= Math.round(value) << 8 * channel;
    }
    return colour >>> 0;
  }
  /**
   * Draw what is painted, moved and scaled if the view has changed since.
   * @param {CanvasRenderingContext2D} context
   * @param {View} view
   */
  draw(context, view) {
    const { grid, view: painted } = this;
    if (!grid || !painted) return;
    const factor = view.scale / painted.scale;
    context.save();
    context.beginPath();
    context.rect(grid.left, grid.top, grid.width, grid.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.canvas,
      grid.left + (painted.x - view.x) * view.scale,
      grid.top + (painted.y - view.y) * view.scale,
      grid.width * factor,
      grid.height * factor
    );
    context.restore();
  }
};

// src/wall/cache-wall.js
var SHARP_CELLS = 4e6;
var REST_MS = 90;
var CLICK_PIXELS = 4;
var HINT = "Hover for a token and its head; click puts the head into focus. Click the wall, then wheel to zoom; drag to move; shift and drag to select heads.";
var CacheWall = class extends SteppedView {
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
  isStale = true;
  // what is painted differs from the view
  showsReads = true;
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    super(component);
    this.data = data;
    this.root = find(component.parentElement, ".kv-wall");
    this.canvas = /** @type {HTMLCanvasElement} */
    findPart(this.root, "canvas");
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
      listeners.listen(button, "click", () => this.press(
        /** @type {HTMLElement} */
        button.dataset.act
      ));
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
    const isOther = this.identity !== void 0 && this.identity !== data.identity;
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
    const changed = [], { cells, index } = this, isPainted = !this.isStale;
    cells.go(index, isPainted ? (cell) => changed.push(cell) : void 0);
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
    const read2 = codes.length - totals[UNSEEN];
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
      return [chip("", colours[code], `${label} ${formatShare(totals[code], read2)}`, meanings[code])];
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
      grid,
      view,
      texts,
      layers,
      facts,
      ink,
      quiet,
      paper,
      factColour,
      focusColour,
      reads: data.readsStep === this.step && this.showsReads ? this.reads() : [],
      focus: this.focus,
      token: this.pointed && this.pointed.position >= 0 ? this.pointed.position : token,
      selection: this.selection,
      wordColour: (cell) => this.wordColour(cells.codes[cell])
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
    if (!isChosen) return;
    event.preventDefault();
    this.look(this.grid.zoomed(this.view, Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 6e-3), x, y));
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
    const move = (x, y) => this.look(grid.clamp({ ...view, x: view.x + x, y: view.y + y }));
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
      }
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
      ...lines.flatMap(([bold, plain]) => [...bold ? [createElement("strong", "", bold)] : [], createElement("span", "", plain)])
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
    const read2 = data.readsStep === this.step ? this.reads().find((one) => one.head === head && one.position === position) : void 0;
    if (read2) parts.push(`its slot gets ${(100 * read2.mass).toPrecision(3)} % of the attention`);
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
    const read2 = counts.reduce((sum, count, code) => sum + (code === UNSEEN ? 0 : count), 0);
    const codes = Array.from({ length: CODES }, (_, code) => code).filter((code) => code !== UNSEEN && counts[code]);
    return codes.map((code) => `${formatShare(counts[code], read2)} ${this.data.labels[code]}`).join(", ");
  }
};
function formatShare(part, whole) {
  const percent = whole ? 100 * part / whole : 0;
  if (percent === 0 || percent === 100) return `${percent} %`;
  return percent < 0.1 ? "below 0.1 %" : percent > 99.9 ? "above 99.9 %" : `${Number(percent.toPrecision(3))} %`;
}

// src/components/wall.js
var wall_default = mount(CacheWall, deliverWithShared);
export {
  wall_default as default
};
