/** @import { Component } from "../types.js" */
import { createElement, find, findPart, Listeners, positionOf } from "../dom.js";
import { mount } from "../mount.js";
import { cut } from "../text.js";
import { TextBlocks } from "../text-blocks.js";
import { arrowTarget, ordered, pickerHint } from "../word-span.js";

const CHIP_LIMIT = 60;

/**
 * Words of a text, facts as [first, last] word, and the text of each fact.
 * @typedef {{ texts: string[], facts: [number, number][], words: string[] }} Data
 */

/**
 * Marks facts in a text by a click on the first and on the last word, and lists them with a button to remove each. The
 * server keeps the facts; the first word is kept here until the last is clicked.
 */
class WordPicker {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {number | null} */
  first = null;
  /** @type {number | null} */
  over = null; // word under the pointer while the last word is not clicked yet
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
}

export default mount(WordPicker);
