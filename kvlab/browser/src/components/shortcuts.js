/** @import { Component } from "../types.js" */
import { createElement, find } from "../dom.js";
import { HeadTurns } from "../head-turns.js";
import { hasModifier, isTextInput, keyTarget } from "../keyboard.js";
import { mount } from "../mount.js";

/**
 * Keys with their meanings, whether j and k turn heads, and by key the selector of a field to go to or of a button to click.
 * @typedef {{ keys: [string, string][], heads: boolean, targets?: Record<string, string> }} Data
 */

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

  /**
   * Goes to the field or clicks the button of a key; whether there is one on the page.
   * @param {string} key
   */
  use(key) {
    const selector = this.data.targets?.[key];
    const target = selector ? /** @type {HTMLElement | null} */ (document.querySelector(selector)) : null;
    if (target && isTextInput(target)) target.focus();
    else target?.click();
    return target !== null;
  }

  report() {
    turns.reported = turns.sum;
    this.component.setStateValue("turned", turns.sum);
  }
}

document.addEventListener("keydown", (event) => {
  const target = keyTarget(event);
  if (event.key === "Escape" && shown?.data.targets && isTextInput(target)) target.blur(); // so that keys act again
  if (isTextInput(target) || hasModifier(event)) return;
  if (event.key === "?" && shown) shown.toggle();
  else if (shown?.use(event.key)) event.preventDefault();
  else if (turns.press(event.key, shown?.data.heads)) shown?.report();
  else return;
  event.preventDefault();
});

export default mount(Shortcuts);
