// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/wordpicker.js src/dom.js src/mount.js src/text-blocks.js src/text.js src/word-span.js
// SHA-256 of the sources: 9b201be404c9773b72de5e8af2b22ef346b870a68a0e43dc9a32e589bf463614
// SHA-256 of the code: 7896208769e39327428ad726feab5e06ab54e5845dab5ed5caba1ea7df71667e
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

// src/text.js
var shownText = (text) => text === "" ? "∅" : text;
var cut = (text, limit) => text.length > limit ? text.slice(0, limit - 1) + "…" : text;

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

// src/word-span.js
var ordered = (first, last) => [Math.min(first, last), Math.max(first, last)];
function arrowTarget(key, from, length) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[key];
  if (!step) return null;
  return Math.min(Math.max((from ?? (step > 0 ? -1 : 0)) + step, 0), length - 1);
}
function pickerHint(firstWord, facts) {
  if (firstWord !== null) return `From “${firstWord}”: now click the last word of the fact (Escape: none).`;
  if (!facts) return "Click the first word of a fact, then its last.";
  return `${facts} ${facts === 1 ? "fact is" : "facts are"} marked. Click the first word of another.`;
}

// src/components/wordpicker.js
var CHIP_LIMIT = 60;
var WordPicker = class {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {number | null} */
  first = null;
  /** @type {number | null} */
  over = null;
  // word under the pointer while the last word is not clicked yet
  /** @type {number | null} */
  cursor = null;
  /** @type {TextBlocks | null} */
  blocks = null;
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.data = data;
    this.root = find(component.parentElement, ".kv-word-picker");
    this.panel = findPart(this.root, "text");
    this.listeners.listen(this.panel, "click", (event) => {
      const position = positionOf(event.target);
      if (position !== null) this.choose(position);
    });
    this.listeners.listen(this.panel, "mouseover", (event) => {
      const position = positionOf(event.target);
      if (position !== null) this.extend(position);
    });
    this.listeners.listen(this.panel, "keydown", (event) => this.onKey(event));
  }
  dispose() {
    this.blocks?.dispose();
    this.listeners.dispose();
  }
  /** @param {Data} data */
  refresh(data) {
    this.data = data;
    const identity = data.texts.join("");
    if (identity !== this.identity) {
      this.identity = identity;
      this.blocks?.dispose();
      this.first = this.cursor = null;
      this.blocks = new TextBlocks(this.panel, data.texts, (span, position) => this.styleWord(span, position));
    }
    this.restyle();
    this.drawFacts();
  }
  /**
   * @param {HTMLElement} span
   * @param {number} position
   */
  styleWord(span, position) {
    const [from, to] = this.first === null ? [0, -1] : ordered(this.first, this.over ?? this.first);
    span.classList.toggle("fact", this.data.facts.some(([first, last]) => position >= first && position <= last));
    span.classList.toggle("between", position >= from && position <= to);
    span.classList.toggle("first", position === this.first);
    span.classList.toggle("cursor", position === this.cursor);
  }
  /** @param {number} position */
  restyleWord(position) {
    const span = this.blocks?.spans[position];
    if (span) this.styleWord(span, position);
  }
  restyle() {
    this.data.texts.forEach((_, position) => this.restyleWord(position));
    const first = this.first === null ? null : this.data.texts[this.first].trim();
    findPart(this.root, "hint").textContent = pickerHint(first, this.data.facts.length);
  }
  /** @param {number | null} position */
  setFirst(position) {
    this.first = this.over = position;
    this.restyle();
  }
  /** @param {number} position */
  choose(position) {
    const { first } = this;
    if (first === null) {
      this.setFirst(position);
      return;
    }
    this.setFirst(null);
    this.component.setTriggerValue("picked", ordered(first, position));
  }
  /**
   * Light the words from the first one to `position`, while the last word is not clicked yet.
   * @param {number} position
   */
  extend(position) {
    if (this.first === null || position === this.over) return;
    const before = this.over ?? this.first;
    this.over = position;
    const from = Math.min(before, position, this.first), to = Math.max(before, position, this.first);
    for (let at = from; at <= to; at++) this.restyleWord(at);
  }
  /** @param {KeyboardEvent} event */
  onKey(event) {
    const target = arrowTarget(event.key, this.cursor, this.data.texts.length);
    if (target !== null) this.moveCursor(target);
    else if ((event.key === "Enter" || event.key === " ") && this.cursor !== null) this.choose(this.cursor);
    else if (event.key === "Escape" && this.first !== null) this.setFirst(null);
    else return;
    event.preventDefault();
  }
  /** @param {number} position */
  moveCursor(position) {
    const before = this.cursor, word = this.blocks?.word(position);
    this.cursor = position;
    if (before !== null) this.restyleWord(before);
    this.restyleWord(position);
    word?.scrollIntoView({ block: "nearest" });
    this.extend(position);
  }
  drawFacts() {
    const chips = this.data.words.map((words, index) => {
      const chip = createElement("span", "chip"), text = createElement("span", "", cut(words, CHIP_LIMIT));
      const remove = createElement("button", "", "×");
      text.title = words;
      text.addEventListener("click", () => this.scrollToFact(index));
      remove.setAttribute("aria-label", `Take away the fact ${words}`);
      remove.addEventListener("click", () => this.component.setTriggerValue("removed", index));
      chip.append(text, remove);
      return chip;
    });
    findPart(this.root, "facts").replaceChildren(...chips);
  }
  /** @param {number} index */
  scrollToFact(index) {
    const fact = this.data.facts[index];
    if (fact) this.blocks?.word(fact[0])?.scrollIntoView({ block: "center" });
  }
};
var wordpicker_default = mount(WordPicker);
export {
  wordpicker_default as default
};
