// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/shortcuts.js src/dom.js src/head-turns.js src/keyboard.js src/mount.js
// SHA-256 of the sources: 1061e8f760a33bda7f3097078adc01bc822340c85ad57fc0250a0fde40a17996
// SHA-256 of the code: 942b6a12a8ca41df0f8aca3bd79128ce4a43e98e0716374ed90148361ebd1105
// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}
function createElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== void 0) node.textContent = text;
  return node;
}

// src/head-turns.js
var GAP_MS = 3e3;
var TURNS = { j: 1, "]": 1, k: -1, "[": -1 };
var HeadTurns = class {
  sum = 0;
  reported = 0;
  #acceptUntil = -Infinity;
  /** The list of keys is removed: it may be drawn again, so presses in the next seconds count. */
  pause(now = performance.now()) {
    this.#acceptUntil = now + GAP_MS;
  }
  /** Presses no longer count until a list of keys with heads is shown. */
  end() {
    this.#acceptUntil = -Infinity;
  }
  /**
   * Whether a key turns to another head; if so, it is counted.
   * @param {string} key
   * @param {boolean | undefined} hasHeads of the list of keys that is shown; undefined: none is shown
   */
  press(key, hasHeads, now = performance.now()) {
    const turn = TURNS[key];
    if (!turn || !(hasHeads ?? now < this.#acceptUntil)) return false;
    this.sum += turn;
    return true;
  }
};

// src/keyboard.js
var hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;
var keyTarget = (event) => (
  /** @type {HTMLElement} */
  event.composedPath()[0]
);
function isTextInput(target) {
  const isField = ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
  return target.isContentEditable || isField && /** @type {HTMLInputElement} */
  target.type !== "range";
}

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

// src/components/shortcuts.js
var turns = new HeadTurns();
var shown = null;
var Shortcuts = class {
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.data = data;
    const root = find(component.parentElement, ".kv-keys");
    this.dialog = /** @type {HTMLDialogElement} */
    find(root, "dialog");
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
    const target = selector ? (
      /** @type {HTMLElement | null} */
      document.querySelector(selector)
    ) : null;
    if (target && isTextInput(target)) target.focus();
    else target?.click();
    return target !== null;
  }
  report() {
    turns.reported = turns.sum;
    this.component.setStateValue("turned", turns.sum);
  }
};
document.addEventListener("keydown", (event) => {
  const target = keyTarget(event);
  if (event.key === "Escape" && shown?.data.targets && isTextInput(target)) target.blur();
  if (isTextInput(target) || hasModifier(event)) return;
  if (event.key === "?" && shown) shown.toggle();
  else if (shown?.use(event.key)) event.preventDefault();
  else if (turns.press(event.key, shown?.data.heads)) shown?.report();
  else return;
  event.preventDefault();
});
var shortcuts_default = mount(Shortcuts);
export {
  shortcuts_default as default
};
