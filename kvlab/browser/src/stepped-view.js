/** @import { Component } from "./types.js" */
/** @import { StepBar } from "./step-bar.js" */
import { clampIndex } from "./steps.js";

const PLAY_MS = 220, REPORT_MS = 250;

/**
 * A view of a run that moves through steps by itself and tells the server where it stopped. A subclass has `steps`, a step
 * bar, and `show(step)`.
 */
export class SteppedView {
  step = 0;
  serverStep = 0; // the step the server sent last
  /** @type {number[]} */
  reported = []; // steps that the server has not answered yet
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
    if (this.playTimer !== undefined) {
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
    this.playTimer = undefined;
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
}
