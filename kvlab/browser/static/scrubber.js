// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/scrubber.js src/dom.js src/keyboard.js src/mount.js src/step-bar.js src/steps.js
// SHA-256 of the sources: 7d4b59286f95b6bff2a2bc89a4ae5bcb9bf437137ca999565561dc5323ede51d
// SHA-256 of the code: 817e60ad3c7986cb959f82e2eb2830f50dd45826b43b7587e8b34a295c4606b6
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

// src/components/scrubber.js
var REST_MS = 160;
var PLAY_MS = 350;
var ANSWER_MS = 5e3;
var Scrubber = class {
  /** @type {string | undefined} */
  identity;
  /** @type {number | undefined} */
  requested;
  // step that the server has not answered yet
  index = 0;
  isPlaying = false;
  movedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  reportTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  playTimer;
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.data = data;
    this.root = find(component.parentElement, ".kv-scrubber");
    this.bar = new StepBar(this);
  }
  get steps() {
    return this.data.steps;
  }
  get events() {
    return this.data.events;
  }
  get step() {
    return this.steps[this.index];
  }
  dispose() {
    this.stop();
    this.cancelReport();
    this.bar.dispose();
  }
  /** @param {Data} data */
  refresh(data) {
    const isNewStep = data.step !== this.data.step, isOther = data.identity !== this.identity;
    this.data = data;
    if (isOther || isNewStep && !this.hasMovedOn(data.step)) this.index = Math.max(0, data.steps.indexOf(data.step));
    this.identity = data.identity;
    this.draw();
    if (this.isPlaying) {
      clearTimeout(this.playTimer);
      this.playTimer = setTimeout(() => this.advance(), PLAY_MS);
    }
  }
  draw() {
    const { texts, step, why } = this.data;
    this.bar.show(this.step === step ? why : "", texts[this.index] ?? "");
    this.root.dataset.step = String(step);
  }
  /**
   * A single step is reported immediately; of several in quick succession only the last.
   * @param {number} index
   */
  go(index) {
    const now = performance.now(), isSingle = now - this.movedAt >= REST_MS;
    this.movedAt = now;
    this.index = index;
    this.draw();
    this.cancelReport();
    if (isSingle) this.report();
    else {
      this.reportTimer = setTimeout(() => {
        this.reportTimer = void 0;
        this.report();
      }, REST_MS);
    }
  }
  cancelReport() {
    clearTimeout(this.reportTimer);
    this.reportTimer = void 0;
  }
  /**
   * Whether the user has moved on from a step that the server has just drawn, and the server will hear of it.
   * @param {number} step
   */
  hasMovedOn(step) {
    if (step === this.requested) this.requested = void 0;
    const isWaiting = this.requested !== void 0 && performance.now() - this.movedAt < ANSWER_MS;
    return this.reportTimer !== void 0 || isWaiting;
  }
  report() {
    const { step } = this;
    if (step === this.data.step && this.requested === void 0) return;
    this.requested = step;
    this.component.setStateValue("step", step);
  }
  toggle() {
    if (this.isPlaying) {
      this.stop();
      return;
    }
    if (this.index === this.steps.length - 1) this.index = -1;
    this.setPlaying(true);
    this.advance();
  }
  advance() {
    if (!this.isPlaying) return;
    if (this.index >= this.steps.length - 1) {
      this.stop();
      return;
    }
    this.index++;
    this.draw();
    this.report();
  }
  stop() {
    this.setPlaying(false);
  }
  /** @param {boolean} isPlaying */
  setPlaying(isPlaying) {
    this.isPlaying = isPlaying;
    clearTimeout(this.playTimer);
    this.bar.showPlaying(isPlaying);
  }
};
var scrubber_default = mount(Scrubber);
export {
  scrubber_default as default
};
