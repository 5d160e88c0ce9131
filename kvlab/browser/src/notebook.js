/* The views of a notebook, as a module of anywidget (kvlab/views/base/widget.py). */

import scrubber from "./components/scrubber.js";
import { createElement } from "./dom.js";
import { mount } from "./mount.js";
import { unpack } from "./payload.js";
import { TokenStrip } from "./tokenstrip/token-strip.js";
import { CacheWall } from "./wall/cache-wall.js";

/** @typedef {{ get(name: string): any, set(name: string, value: unknown): void, save_changes(): void }} Values */
/** @typedef {{ on(types: string, handler: () => void): void, off(types: string, handler: () => void): void }} Events */

/** @type {Record<string, ReturnType<typeof mount>>} */
const VIEWS = { scrubber, tokenstrip: mount(TokenStrip), wall: mount(CacheWall) };

/** @param {DataView} view */
const bytesOf = ({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer, byteOffset, byteLength);

/**
 * What stays while the step changes, by name: a value, or vectors.
 * @param {Values} model
 */
function sharedData(model) {
  const entries = Object.entries(model.get("shared")).map(([name, packed]) => {
    const { value, ...vectors } = unpack(bytesOf(packed));
    return [name, value ?? vectors];
  });
  return Object.fromEntries(entries);
}

/**
 * What was clicked, which is marked at once: a busy kernel answers late, a saved notebook has none.
 * @param {Values} model
 */
function clickedData(model) {
  const place = model.get("place"), token = model.get("token");
  return {
    ...(place && { focus: place.slice(0, 2), token: place[2] < 0 ? null : place[2] }),
    ...(token !== null && { selected: token }),
  };
}

/**
 * Hide the picture that the notebook keeps for readers without a kernel, beside which the live view stands.
 * @param {HTMLElement} element
 * @param {string} ending of the picture's base64
 */
function hidePicture(element, ending) {
  const root = /** @type {ParentNode} */ (/** @type {unknown} */ (element.getRootNode()));
  for (const image of ending ? root.querySelectorAll("img") : []) {
    if (image.src.endsWith(ending)) image.style.display = "none";
  }
}

/** @param {{ model: Values & Events, el: HTMLElement }} given */
function render({ model, el }) {
  el.dataset.lmSuppressShortcuts = "true"; // the keys of JupyterLab: d twice deletes the cell
  const host = createElement("div"), root = host.attachShadow({ mode: "open" });
  const style = createElement("style", "", model.get("styles"));
  const body = createElement("div", "kv-notebook");
  body.innerHTML = model.get("markup");
  root.append(style, body);
  el.append(host);
  const shared = sharedData(model), show = VIEWS[model.get("component")];
  const tell = (/** @type {string} */ name, /** @type {unknown} */ value) => {
    model.set(name, value);
    model.save_changes();
  };
  let content = unpack(bytesOf(model.get("content")));
  const component = { parentElement: body, data: content, isEmbedded: true, setStateValue: tell, setTriggerValue: tell };
  const draw = () => show({ ...component, data: { ...content, ...shared, ...clickedData(model) } });
  const receive = () => {
    content = unpack(bytesOf(model.get("content")));
    draw();
  };
  const sizes = new ResizeObserver(() => hidePicture(el, model.get("picture")));
  sizes.observe(el);
  model.on("change:content", receive);
  model.on("change:place", draw);
  model.on("change:token", draw);
  const dispose = draw();
  return () => {
    sizes.disconnect();
    model.off("change:content", receive);
    model.off("change:place", draw);
    model.off("change:token", draw);
    dispose();
  };
}

export default { render };
