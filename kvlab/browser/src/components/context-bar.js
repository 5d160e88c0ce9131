/** @import { Component, PlotlyChart } from "../types.js" */
import { hideContainer } from "../dom.js";
import { fadeOtherLines } from "../line-focus.js";
import { mount } from "../mount.js";
import { allCharts, clickTarget, watchPage } from "../plotly-charts.js";

/**
 * Reports clicks on the cells of charts, brings forward the line of a chart under the pointer, and gives context-bar.css
 * the height of the bar and the page's background.
 */
class ContextBar {
  /** @type {WeakSet<PlotlyChart>} */
  known = new WeakSet();
  /** @type {WeakSet<PlotlyChart>} */
  withLines = new WeakSet();
  count = 0;
  isDisposed = false;
  /** @type {Element | null} */
  bar = null;

  /** @param {Component} component */
  constructor(component) {
    this.component = component;
    hideContainer(component.parentElement);
    this.barObserver = new ResizeObserver(() => this.measureBar());
    this.stopWatching = watchPage(() => this.look());
  }

  refresh() {}

  dispose() {
    this.stopWatching();
    this.barObserver.disconnect();
    this.isDisposed = true; // Plotly's handlers stay
  }

  look() {
    const app = document.querySelector(".stApp"), bar = document.querySelector(".st-key-context-bar")?.parentElement;
    if (app) setPageProperty("--kv-ground", getComputedStyle(app).backgroundColor);
    if (bar && bar !== this.bar) {
      this.bar = bar;
      this.barObserver.disconnect();
      this.barObserver.observe(bar);
    }
    allCharts().forEach((chart) => {
      this.watchClicks(chart);
      this.watchLines(chart);
    });
  }

  /** @param {PlotlyChart} chart */
  watchLines(chart) {
    if (!chart.layout?.meta?.lines || this.withLines.has(chart) || !chart.on) return;
    this.withLines.add(chart);
    chart.on("plotly_hover", (event) => fadeOtherLines(chart, event.points?.[0]?.curveNumber));
    chart.on("plotly_unhover", () => fadeOtherLines(chart));
  }

  measureBar() {
    const height = this.bar?.getBoundingClientRect().height;
    if (height) setPageProperty("--kv-bar", `${Math.round(height)}px`);
  }

  /** @param {PlotlyChart} chart */
  watchClicks(chart) {
    if (!chart.layout?.meta?.go) return;
    const surface = /** @type {HTMLElement | null} */ (chart.querySelector(".nsewdrag"));
    if (surface) surface.style.cursor = "pointer";
    if (this.known.has(chart) || !chart.on) return;
    this.known.add(chart);
    chart.on("plotly_click", (event) => {
      const target = clickTarget(chart.layout?.meta, event.points?.[0]);
      if (this.isDisposed || !Object.keys(target).length) return;
      this.component.setTriggerValue("go", { ...target, count: ++this.count }); // a second click on a cell counts again
    });
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
function setPageProperty(name, value) {
  document.documentElement.style.setProperty(name, value);
}

export default mount(ContextBar);
