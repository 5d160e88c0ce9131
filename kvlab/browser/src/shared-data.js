/* Large data that views of a page share, such as a run's token texts: sent once (app/components.py) and named by
   their hash. A view that names data which have not arrived is drawn when they do. Components are separate modules, so
   the store is on `window`. */

import { unpack } from "./payload.js";

const MAX_VALUES = 6;

const store = () => (window.kvlabShared ??= { values: new Map(), waiting: new Map() });

/**
 * Keep the value and draw the views that wait for it.
 * @param {string} name
 * @param {unknown} value
 */
export function storeShared(name, value) {
  const { values, waiting } = store();
  values.delete(name);
  values.set(name, value);
  for (const oldest of values.keys()) if (values.size > MAX_VALUES) values.delete(oldest);
  for (const [view, { data, draw }] of [...waiting]) drawWithShared(view, data, draw);
}

/**
 * Call `draw` with the data and the shared values that `data.shared` names by field, once they are there. `view`
 * identifies the caller.
 * @param {object} view
 * @param {{ shared?: Record<string, string> }} data
 * @param {(data: any) => void} draw
 */
function drawWithShared(view, data, draw) {
  const { values, waiting } = store(), fields = Object.entries(data.shared ?? {});
  if (fields.some(([, name]) => !values.has(name))) {
    waiting.set(view, { data, draw });
    return;
  }
  waiting.delete(view);
  Object.assign(data, Object.fromEntries(fields.map(([field, name]) => [field, values.get(name)])));
  draw(data);
}

/**
 * Deliver a binary payload together with the shared values it names.
 * @type {import("./mount.js").Deliver}
 */
export function deliverWithShared(component, draw) {
  drawWithShared(component.parentElement, unpack(component.data), draw);
  return () => store().waiting.delete(component.parentElement);
}
