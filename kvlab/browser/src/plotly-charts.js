/** @import { PlotlyChart, PlotlyPoint, PlotlyAxis } from "./types.js" */

const SETTLE_MS = 100;

/**
 * Call `callback` now and after every change of the page: charts come and go with Streamlit's reruns, and Streamlit's own
 * chart selection does not report clicks on heat maps. Returns a function that stops watching.
 * @param {() => void} callback
 */
export function watchPage(callback) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const run = () => {
    timer = undefined;
    callback();
  };
  const observer = new MutationObserver(() => { timer ??= setTimeout(run, SETTLE_MS); });
  observer.observe(document.body, { childList: true, subtree: true, attributeFilter: ["class"] });
  callback();
  return () => {
    clearTimeout(timer);
    observer.disconnect();
  };
}

/** @returns {PlotlyChart[]} */
export const allCharts = () => [...document.querySelectorAll(".js-plotly-plot")].map((node) => /** @type {PlotlyChart} */ (node));

/**
 * The token position of a point of a chart whose `layout.meta.tokens` names the axis along the text, or null.
 * @param {{ axis: "x" | "y", offset: number }} tokens
 * @param {PlotlyPoint | undefined} point
 */
export function tokenPosition({ axis, offset }, point) {
  const value = point?.[axis];
  const number = typeof value === "number" ? value : Number.parseInt(value ?? "", 10);
  return Number.isFinite(number) ? Math.round(number) + offset : null;
}

/**
 * The value of a position on an axis. On an axis of categories, whose labels begin with a position: the last one that
 * begins at or before it.
 * @param {Pick<PlotlyAxis, "type" | "_categories">} axis
 * @param {number} position
 */
export function axisValue(axis, position) {
  if (axis.type !== "category") return position;
  return axis._categories.findLast((label) => Number.parseInt(label, 10) <= position) ?? axis._categories[0];
}

/**
 * What a click on a cell selects, such as `{ layer: 3, head: 1 }`: `layout.meta.go` names what x and y are, and
 * `layout.meta.ranks` lists what the numbers of an axis stand for.
 * @param {NonNullable<PlotlyChart["layout"]>["meta"]} meta
 * @param {PlotlyPoint | undefined} point
 */
export function clickTarget(meta, point) {
  const target = { ...point?.customdata?.go };
  for (const axis of /** @type {const} */ (["x", "y"])) {
    const name = meta?.go?.[axis], value = cellNumber(point?.[axis], meta?.ranks?.[axis]);
    if (name && value !== undefined && Number.isFinite(value)) target[name] = value;
  }
  return target;
}

/**
 * The number of a cell: the value itself, the first number of a label such as `12 “word”`, or an entry of `ranks`.
 * @param {number | string | undefined} value
 * @param {number[] | undefined} ranks
 */
function cellNumber(value, ranks) {
  return ranks ? ranks[Math.round(Number(value))] : Number.parseInt(String(value).replace(/^\D+/, ""), 10);
}
