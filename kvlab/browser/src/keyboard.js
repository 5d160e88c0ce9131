/** @param {KeyboardEvent} event */
export const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;

/**
 * The element that received a key, also inside a shadow root.
 * @param {Event} event
 */
export const keyTarget = (event) => /** @type {HTMLElement} */ (event.composedPath()[0]);

/**
 * Whether keys typed in an element are text.
 * @param {HTMLElement} target
 */
export function isTextInput(target) {
  const isField = ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
  return target.isContentEditable || (isField && /** @type {HTMLInputElement} */ (target).type !== "range");
}

/**
 * Whether arrow keys and letters have no meaning of their own in an element: the page itself, which has the focus after a
 * click on nothing, and buttons, which keep it after a click. Buttons of tab lists, radio groups and lists use arrow keys.
 * @param {HTMLElement} target
 */
export function ignoresKeys(target) {
  if (target === document.body || target.dataset?.testid === "stMain") return true;
  return target.tagName === "BUTTON" && !target.closest("[role=tablist], [role=radiogroup], [role=listbox]");
}
