/** @import { Vector } from "./types.js" */
import { createElement } from "./dom.js";
import { shownText } from "./text.js";

const BLOCK_TOKENS = 256, IMMEDIATE_TOKENS = 512, FILL_DELAY_MS = 1500, FILL_SLICE_MS = 4, FILL_PAUSE_MS = 60;

/**
 * Positions at which a text is cut into blocks: after a line end, so that the cut is invisible, or where a block would
 * become too long.
 * @param {string[]} texts
 */
export function blockStarts(texts) {
  const starts = [0];
  texts.forEach((text, position) => {
    const length = position + 1 - starts[starts.length - 1];
    if ((length >= BLOCK_TOKENS && text.includes("\n")) || length >= 8 * BLOCK_TOKENS) starts.push(position + 1);
  });
  if (starts.length > 1 && starts.at(-1) === texts.length) starts.pop();
  return starts;
}

/**
 * A long text as blocks of words. A block's words become elements when it comes near the visible area; until then it is
 * plain text. A hundred thousand elements would make every change of the page slower.
 */
export class TextBlocks {
  /**
   * `style(span, position)` is called for each word when its element is created and when its code changes (`setCodes`).
   * @param {HTMLElement} panel
   * @param {string[]} texts
   * @param {(span: HTMLElement, position: number) => void} style
   */
  constructor(panel, texts, style) {
    this.texts = texts;
    this.style = style;
    /** @type {(HTMLElement | undefined)[]} */
    this.spans = new Array(texts.length);
    /** @type {Vector | null} */
    this.codes = null;
    this.styledCodes = new Uint8Array(texts.length).fill(255);
    /** @type {Set<number>} */
    this.near = new Set();
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
      const block = Number(/** @type {HTMLElement} */ (target).dataset.block);
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
}
