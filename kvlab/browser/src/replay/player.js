/* Plays a live session: answers of all branches, their bytes, and the context fading in the branch in focus. */

/** @import { SessionEvent, SessionState, BranchState } from "./state.js" */
import { createElement, find } from "../dom.js";
import { levelOf, stateAfter, stepEnds } from "./state.js";

const STEP_MS = 90;
const PAUSE_MS = 900; // at a question
const SHADES = [0.01, 0.1, 1]; // least KL in nats of each shade
const REASONS = /** @type {Record<string, string>} */ ({ length: "cut at the most tokens", stopped: "stopped" });

export class Player {
  /**
   * @param {HTMLElement} root
   * @param {{ title: string, events: SessionEvent[], texts: string[] }} session
   */
  constructor(root, { title, events, texts }) {
    this.root = root;
    this.events = events;
    this.ends = stepEnds(events);
    this.step = 0;
    this.branch = 1;
    this.branchCount = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    find(root, "h1").textContent = title;
    this.bar = /** @type {HTMLInputElement} */ (find(root, "input"));
    this.bar.max = String(this.ends.length - 1);
    this.words = texts.map((text) => createElement("span", "word", text));
    find(root, ".context").append(...this.words);
    this.#listen();
    this.show(this.ends.length - 1);
  }

  #listen() {
    this.bar.addEventListener("input", () => this.#goTo(Number(this.bar.value)));
    find(this.root, ".play").addEventListener("click", () => this.toggle());
    find(this.root, ".full").addEventListener("click", () => this.fullScreen());
    document.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const branch = Number.parseInt(event.key, 10) - 1;
    if (branch >= 0 && branch < this.branchCount) this.focusBranch(branch);
    else if (event.key === " ") this.toggle();
    else if (event.key === "ArrowRight") this.#goTo(this.step + 1);
    else if (event.key === "ArrowLeft") this.#goTo(this.step - 1);
    else if (event.key === "Home") this.#goTo(0);
    else if (event.key === "End") this.#goTo(this.ends.length - 1);
    else if (event.key === "t") this.root.classList.toggle("text-first");
    else if (event.key === "f") this.fullScreen();
    else return;
    event.preventDefault();
  }

  fullScreen() {
    if (document.fullscreenElement) void document.exitFullscreen();
    else void document.documentElement.requestFullscreen();
  }

  /** Play from here, from the beginning after the end, or pause. */
  toggle() {
    if (this.timer !== undefined) {
      this.pause();
      return;
    }
    if (this.step >= this.ends.length - 1) this.show(0);
    this.#playOn();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.#labelButton();
  }

  /** Whether the replay pauses at each step, as at a question. */
  pauses() {
    const last = this.ends.map((end) => this.events[end - 1]?.kind ?? "");
    return last.map((kind) => kind !== "token" && !kind.startsWith("held_"));
  }

  #playOn() {
    const wait = this.pauses()[this.step] ? PAUSE_MS : STEP_MS;
    this.timer = setTimeout(() => {
      this.show(this.step + 1);
      if (this.step < this.ends.length - 1) this.#playOn();
      else this.pause();
    }, wait);
    this.#labelButton();
  }

  /** @param {number} step */
  #goTo(step) {
    this.pause();
    this.show(step);
  }

  #labelButton() {
    const button = find(this.root, ".play");
    button.textContent = this.timer === undefined ? "Play" : "Pause";
  }

  /** @param {number} branch */
  focusBranch(branch) {
    this.branch = branch;
    this.show(this.step);
  }

  /**
   * Draw a step.
   * @param {number} step
   */
  show(step) {
    this.step = Math.max(0, Math.min(this.ends.length - 1, step));
    const state = stateAfter(this.events, this.ends[this.step]);
    this.branchCount = state.branches.length;
    this.bar.value = String(this.step);
    find(this.root, ".question").textContent = state.question || "The context is compressed. No question yet.";
    find(this.root, ".place").textContent = `step ${this.step} of ${this.ends.length - 1}`;
    find(this.root, ".branches").replaceChildren(...state.branches.map((branch, number) => this.#branchCard(state, branch, number)));
    this.#shadeContext(state.branches[this.branch] ?? state.branches[0]);
  }

  /**
   * @param {SessionState} state
   * @param {BranchState} branch
   * @param {number} number
   */
  #branchCard(state, branch, number) {
    const card = createElement("section", number === this.branch ? "branch focus" : "branch");
    card.addEventListener("click", () => this.focusBranch(number));
    const share = state.fullBytes ? branch.bytes / state.fullBytes : 0;
    const meter = createElement("div", "meter");
    const fill = createElement("div", "fill");
    fill.style.width = `${100 * Math.min(1, share)}%`;
    meter.append(fill);
    const bytes = `${formatBytes(branch.bytes)} · ${(100 * share).toFixed(0)} % of the full cache`;
    const answer = createElement("div", "answer");
    answer.append(...branch.words.map(wordOf));
    if (branch.words.length && !branch.reason) answer.append(createElement("span", "caret", "▍"));
    const note = branch.failure || REASONS[branch.reason] || "";
    card.append(createElement("h2", "", `${number + 1}  ${branch.label}`), meter);
    card.append(createElement("div", "bytes", bytes), answer, createElement("div", "note", note));
    requestAnimationFrame(() => (answer.scrollTop = answer.scrollHeight));
    return card;
  }

  /** @param {BranchState | undefined} branch */
  #shadeContext(branch) {
    if (!branch) return;
    const { held } = branch;
    find(this.root, ".whose").textContent = contextTitle(branch);
    this.words.forEach((word, token) => {
      const level = String(levelOf(branch, token));
      if (word.dataset.level !== level) word.dataset.level = level;
      word.title = held ? `a slot of its own in ${(100 * held[token]).toFixed(0)} % of all layers and heads` : "";
    });
  }
}

/** @param {BranchState} branch */
function contextTitle(branch) {
  const { label, held } = branch;
  if (!held) return label;
  const gone = held.filter((_, token) => levelOf(branch, token) === 0).length / Math.max(held.length, 1);
  return `${label}: ${(100 * gone).toFixed(0)} % of the text's tokens are in no slot`;
}

/** @param {import("./state.js").Word} word */
function wordOf({ text, kl, leaves }) {
  const span = createElement("span", leaves ? "leaves" : "", text);
  const shade = kl === null ? -1 : SHADES.filter((least) => kl >= least).length - 1;
  if (shade >= 0) span.dataset.kl = String(shade);
  span.title = kl === null ? "" : `KL ${kl.toPrecision(3)} nats`;
  return span;
}

/** @param {number} bytes */
function formatBytes(bytes) {
  return bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 10).toFixed(0)} KiB`;
}
