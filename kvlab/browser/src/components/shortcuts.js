/** @import { Component } from "../types.js" */
import { createElement, find } from "../dom.js";
import { HeadTurns } from "../head-turns.js";
import { hasModifier, isTextInput, keyTarget } from "../keyboard.js";
import { mount } from "../mount.js";

/** @typedef {{ keys: [string, string][], heads: boolean }} Data keys with their meanings, and whether j and k turn heads */

const turns = new HeadTurns();
/** @type {Shortcuts | null} */
let shown = null;

/** The list of the page's keys, which "?" opens, and keys for the next and the previous head. */
class Shortcuts {
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.data = data;
    const root = find(component.parentElement, ".kv-keys");
    this.dialog = /** @type {HTMLDialogElement} */ (find(root, "dialog"));
    find(root, "button.open").onclick = () => this.dialog.showModal();
    find(root, "button.close").onclick = () => this.dialog.close();
  }

  dispose() {
    if (shown !== this) return;
    shown = null;
    if (this.data.heads) turns.pause();
    else turns.end();
  }

  toggle() {
    if (this.dialog.open) this.dialog.close();
    else this.dialog.showModal();
  }

  /** @param {Data} data */
  refresh(data) {
    this.data = data;
    shown = this;
    const rows = data.keys.flatMap(([key, meaning]) => [createElement("dt", "", key), createElement("dd", "", meaning)]);
    find(this.dialog, "dl").replaceChildren(...rows);
    if (!data.heads) turns.sum = turns.reported;
    else if (turns.sum !== turns.reported) this.report();
  }

  report() {
    turns.reported = turns.sum;
    this.component.setStateValue("turned", turns.sum);
  }
}

document.addEventListener("keydown", (event) => {
  if (isTextInput(keyTarget(event)) || hasModifier(event)) return;
  if (event.key === "?" && shown) shown.toggle();
  else if (turns.press(event.key, shown?.data.heads)) shown?.report();
  else return;
  event.preventDefault();
});

export default mount(Shortcuts);
