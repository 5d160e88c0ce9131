/* As much of a document as the step bar needs: every selector finds an element, always the same one. */

export class FakeElement {
  tagName = "DIV";
  dataset = {};
  style = { setProperty: (name, value) => { this.style[name] = value; } };
  attributes = {};
  #found = new Map();
  #handlers = new Map();
  #classes = new Set();
  classList = { toggle: (name, on) => (on ? this.#classes.add(name) : this.#classes.delete(name)), contains: (name) => this.#classes.has(name) };

  querySelector(selector) {
    if (!this.#found.has(selector)) this.#found.set(selector, new FakeElement());
    return this.#found.get(selector);
  }

  addEventListener(type, handler) {
    this.#handlers.set(type, [...(this.#handlers.get(type) ?? []), handler]);
  }

  removeEventListener(type, handler) {
    this.#handlers.set(type, (this.#handlers.get(type) ?? []).filter((other) => other !== handler));
  }

  /** Call the handlers of an event; whether its default was prevented. */
  dispatch(type, { path = [this], ...event } = {}) {
    let isPrevented = false;
    const full = { composedPath: () => path, preventDefault: () => { isPrevented = true; }, ...event };
    for (const handler of this.#handlers.get(type) ?? []) handler(full);
    return isPrevented;
  }

  setAttribute(name, value) { this.attributes[name] = value; }
  append() {}
  replaceChildren() {}
  closest() { return null; }
}

/** Install a document; returns a function that removes it. */
export function installDocument() {
  globalThis.document = Object.assign(new FakeElement(), { body: new FakeElement(), createElementNS: () => new FakeElement() });
  return () => { delete globalThis.document; };
}
