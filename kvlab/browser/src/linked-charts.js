/** @import { PlotlyChart } from "./types.js" */
import { createElement } from "./dom.js";
import { allCharts, axisValue, tokenPosition, watchPage } from "./plotly-charts.js";

/**
 * Links a text to the charts of the page that run along it (`layout.meta.tokens`): hovering a chart calls `onHover` with
 * the token position, and `mark` draws a line at a position in every linked chart.
 */
export class LinkedCharts {
  /**
   * @param {(position: number, chart: PlotlyChart) => void} onHover
   * @param {() => void} onLeave
   */
  constructor(onHover, onLeave) {
    this.onHover = onHover;
    this.onLeave = onLeave;
    this.disposed = false;
    /** @type {WeakSet<PlotlyChart>} */
    this.known = new WeakSet();
    /** @type {HTMLElement[]} */
    this.lines = [];
    this.stopWatching = watchPage(() => this.link());
  }

  dispose() {
    this.stopWatching();
    this.unmark();
    this.disposed = true; // Plotly's handlers stay
  }

  linked() {
    return allCharts().filter((chart) => chart.layout?.meta?.tokens && chart._fullLayout);
  }

  link() {
    for (const chart of this.linked()) {
      if (this.known.has(chart) || !chart.on) continue;
      this.known.add(chart);
      chart.dataset.linked = "yes";
      chart.on("plotly_hover", (event) => {
        const tokens = chart.layout?.meta?.tokens;
        const position = this.disposed || !tokens ? null : tokenPosition(tokens, event.points?.[0]);
        if (position !== null) this.onHover(position, chart);
      });
      chart.on("plotly_unhover", () => { if (!this.disposed) this.onLeave(); });
    }
  }

  /**
   * @param {number} position
   * @param {PlotlyChart} [except]
   */
  mark(position, except) {
    this.unmark();
    for (const chart of this.linked()) if (chart !== except) this.drawLine(chart, position);
  }

  /**
   * @param {PlotlyChart} chart
   * @param {number} position
   */
  drawLine(chart, position) {
    const tokens = chart.layout?.meta?.tokens, axes = chart._fullLayout, holder = chart.querySelector(".svg-container");
    if (!tokens || !axes || !holder) return;
    const isVertical = tokens.axis === "x";
    const [along, across] = isVertical ? [axes.xaxis, axes.yaxis] : [axes.yaxis, axes.xaxis];
    const at = along.d2p(axisValue(along, position - tokens.offset));
    if (!Number.isFinite(at) || at < 0 || at > along._length) return;
    const start = `${along._offset + at - 1}px`, edge = `${across._offset}px`, length = `${across._length}px`;
    const line = createElement("div", "kv-token-mark");
    Object.assign(
      line.style,
      { position: "absolute", pointerEvents: "none", background: "currentColor", opacity: "0.75", zIndex: "5" },
      isVertical
        ? { left: start, top: edge, width: "2px", height: length }
        : { top: start, left: edge, height: "2px", width: length },
    );
    holder.append(line);
    this.lines.push(line);
  }

  unmark() {
    for (const line of this.lines.splice(0)) line.remove();
  }
}
