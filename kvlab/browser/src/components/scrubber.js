/** @import { Component } from "../types.js" */
import { find } from "../dom.js";
import { mount } from "../mount.js";
import { StepBar } from "../step-bar.js";

const REST_MS = 160, PLAY_MS = 350, ANSWER_MS = 5000;

/** @typedef {{ steps: number[], events: number[], texts: string[], identity: string, step: number, why: string }} Data */

/**
 * A step scrubber for pages whose figures the server draws. It reports the step at which the user stopped; while playing
 * it waits for each figure before it requests the next.
 */
class Scrubber {
  /** @type {string | undefined} */
  identity;
  /** @type {number | undefined} */
  requested; // step that the server has not answered yet
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
    if (isOther || (isNewStep && !this.hasMovedOn(data.step))) this.index = Math.max(0, data.steps.indexOf(data.step));
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
        this.reportTimer = undefined;
        this.report();
      }, REST_MS);
    }
  }

  cancelReport() {
    clearTimeout(this.reportTimer);
    this.reportTimer = undefined;
  }

  /**
   * Whether the user has moved on from a step that the server has just drawn, and the server will hear of it.
   * @param {number} step
   */
  hasMovedOn(step) {
    if (step === this.requested) this.requested = undefined;
    const isWaiting = this.requested !== undefined && performance.now() - this.movedAt < ANSWER_MS;
    return this.reportTimer !== undefined || isWaiting;
  }

  report() {
    const { step } = this;
    if (step === this.data.step && this.requested === undefined) return;
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
}

export default mount(Scrubber);
