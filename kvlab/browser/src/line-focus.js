/** @import { PlotlyChart } from "./types.js" */

const FADED = "0.2";

/**
 * Fade all lines of a chart and their names at the ends but those named like trace `focus`; none without a focus.
 * `layout.meta.lines` lists the names in the order of the chart's annotations.
 * @param {PlotlyChart} chart
 * @param {number} [focus]
 */
export function fadeOtherLines(chart, focus) {
  const traces = chart._fullData ?? [], name = focus === undefined ? undefined : traces[focus]?.name;
  const opacity = (/** @type {string | undefined} */ other) => (name === undefined || other === name ? "" : FADED);
  for (const trace of traces) {
    const line = /** @type {HTMLElement | null} */ (chart.querySelector(`.scatterlayer .trace${trace.uid}`));
    if (line) line.style.opacity = opacity(trace.name);
  }
  const lines = chart.layout?.meta?.lines ?? [];
  for (const label of /** @type {NodeListOf<HTMLElement>} */ (chart.querySelectorAll(".annotation"))) {
    label.style.opacity = opacity(lines[Number(label.dataset.index)]);
  }
}
