/* Token texts of runs, sent once per page (app/components/payload.py) and shared by all views. A view that names
   texts which have not arrived is drawn when they do. Components are separate modules, so the store is on `window`. */

import { unpack } from "./payload.js";

const MAX_TEXTS = 4;

const store = () => (window.kvlabTexts ??= { texts: new Map(), waiting: new Map() });

/**
 * Keep the texts and draw the views that wait for them.
 * @param {string} name
 * @param {string[]} tokenTexts
 */
export function storeTexts(name, tokenTexts) {
  const { texts, waiting } = store();
  texts.delete(name);
  texts.set(name, tokenTexts);
  for (const oldest of texts.keys()) if (texts.size > MAX_TEXTS) texts.delete(oldest);
  for (const [view, { data, draw }] of [...waiting]) drawWithTexts(view, data, draw);
}

/**
 * Call `draw` with the data and their texts, once the texts are there. `view` identifies the caller.
 * @param {object} view
 * @param {{ texts?: string[], textsName?: string }} data
 * @param {(data: any) => void} draw
 */
function drawWithTexts(view, data, draw) {
  const { texts, waiting } = store();
  const tokenTexts = data.texts ?? texts.get(data.textsName ?? "");
  if (!tokenTexts) {
    waiting.set(view, { data, draw });
    return;
  }
  waiting.delete(view);
  data.texts = tokenTexts;
  draw(data);
}

/**
 * Deliver a binary payload together with its texts.
 * @type {import("./mount.js").Deliver}
 */
export function deliverWithTexts(component, draw) {
  drawWithTexts(component.parentElement, unpack(component.data), draw);
  return () => store().waiting.delete(component.parentElement);
}
