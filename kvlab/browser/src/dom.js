/**
 * The element that matches `selector`.
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLElement}
 */
export function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return /** @type {HTMLElement} */ (node);
}

/**
 * The element with `data-part="name"`.
 * @param {ParentNode} root
 * @param {string} name
 */
export const findPart = (root, name) => find(root, `[data-part="${name}"]`);

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {string} [text]
 */
export function createElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/**
 * The token position of a word's element, or null for any other element.
 * @param {EventTarget | null} target
 */
export function positionOf(target) {
  const position = /** @type {HTMLElement | null} */ (target)?.dataset?.p;
  return position === undefined ? null : Number(position);
}

/**
 * Hide the container of a component that has nothing to show, so that it takes no space.
 * @param {HTMLElement | ShadowRoot} root
 */
export function hideContainer(root) {
  const element = root instanceof ShadowRoot ? root.host : root;
  const container = /** @type {HTMLElement | null} */ (element.closest("[data-testid=stElementContainer]"));
  if (container) container.style.display = "none";
}

/** Listeners and observers that are removed together. */
export class Listeners {
  /** @type {(() => void)[]} */
  #removals = [];

  /**
   * @template {keyof DocumentEventMap} Type
   * @param {Node} node
   * @param {Type} type
   * @param {(event: DocumentEventMap[Type]) => void} handler
   * @param {AddEventListenerOptions} [options]
   */
  listen(node, type, handler, options) {
    const listener = /** @type {EventListener} */ (handler);
    node.addEventListener(type, listener, options);
    this.add(() => node.removeEventListener(type, listener, options));
  }

  /**
   * @param {Element} node
   * @param {() => void} handler
   */
  onResize(node, handler) {
    const observer = new ResizeObserver(handler);
    observer.observe(node);
    this.add(() => observer.disconnect());
  }

  /** @param {() => void} removal */
  add(removal) {
    this.#removals.push(removal);
  }

  dispose() {
    for (const removal of this.#removals.splice(0)) removal();
  }
}
