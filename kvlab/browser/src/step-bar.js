/** @import { Component } from "./types.js" */
import { findPart, Listeners } from "./dom.js";
import { hasModifier, ignoresKeys, keyTarget } from "./keyboard.js";
import { clampIndex, nextEventIndex, stepLabel } from "./steps.js";

const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  back: "M9 3h2v10H9zM7 3v10L1 8z",
  play: "M4 3v10l8-5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3h2v10H5zM9 3v10l6-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z",
};
const HTML = `
  <button data-part="first" aria-label="First step" title="First step (Home)"></button>
  <button data-part="back" aria-label="Step back" title="Step back (left arrow)"></button>
  <button data-part="play" aria-label="Play" title="Play or pause (space)"></button>
  <button data-part="next" aria-label="Step forward" title="Step forward (right arrow)"></button>
  <button data-part="last" aria-label="Last step" title="Last step (End)"></button>
  <button data-part="event" title="Next step in which a slot left (n)">next event</button>
  <input data-part="slider" type="range" min="0" step="1" aria-label="Step">
  <span class="step" data-part="step"></span>
  <span class="phase" data-part="phase"></span>`;

/**
 * What a step bar controls.
 * @typedef {object} SteppedView
 * @property {Component} component
 * @property {HTMLElement} root contains the element `[data-part="bar"]`
 * @property {number[]} steps
 * @property {number[]} events steps in which a slot was evicted or merged
 * @property {number} step the step in view
 * @property {number} index of the step in view
 * @property {(index: number) => void} go shows the step at a valid index
 * @property {() => void} toggle starts or stops playing
 * @property {() => void} stop stops playing
 */

/** Buttons, a slider, keys and a caption for a view that goes through steps. */
export class StepBar {
  listeners = new Listeners();

  /** @param {SteppedView} view */
  constructor(view) {
    this.view = view;
    this.bar = findPart(view.root, "bar");
    this.bar.innerHTML = HTML;
    this.slider = /** @type {HTMLInputElement} */ (findPart(this.bar, "slider"));
    const actions = {
      first: () => this.jump(0),
      back: () => this.jump(view.index - 1),
      play: () => view.toggle(),
      next: () => this.jump(view.index + 1),
      last: () => this.jump(view.steps.length - 1),
      event: () => this.jumpToEvent(),
    };
    for (const [name, action] of Object.entries(actions)) {
      const button = findPart(this.bar, name);
      if (name !== "event") button.replaceChildren(createIcon(ICONS[/** @type {keyof typeof ICONS} */ (name)]));
      this.listeners.listen(button, "click", action);
    }
    /** @type {Record<string, () => void>} */
    this.keys = {
      Home: actions.first,
      ArrowLeft: actions.back,
      " ": actions.play,
      ArrowRight: actions.next,
      End: actions.last,
      n: actions.event,
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
    this.slider.style.setProperty("--share", `${(100 * index) / Math.max(1, steps.length - 1)}%`);
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
    const isMeant = isInside || (!this.view.component.isEmbedded && ignoresKeys(target));
    if (!isMeant || hasModifier(event)) return;
    const action = this.keys[event.key];
    if (!action || (target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    action();
  }
}

/** @param {string} shape */
function createIcon(shape) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shape);
  svg.append(path);
  return svg;
}
