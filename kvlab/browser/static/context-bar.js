// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/context-bar.js src/dom.js src/line-focus.js src/mount.js src/plotly-charts.js
// SHA-256 of the sources: f7b9594deabc533c287f4f4abbac19860ed019cb070102384063b05768b0c0c8
// SHA-256 of the code: 13679975ab35b76db440589c48fe1bf16bd4f1023755956c87286359e7b80e8c
// src/dom.js
function hideContainer(root) {
  const element = root instanceof ShadowRoot ? root.host : root;
  const container = (
    /** @type {HTMLElement | null} */
    element.closest("[data-testid=stElementContainer]")
  );
  if (container) container.style.display = "none";
}

// src/line-focus.js
var FADED = "0.2";
function fadeOtherLines(chart, focus) {
  const traces = chart._fullData ?? [], name = focus === void 0 ? void 0 : traces[focus]?.name;
  const opacity = (other) => name === void 0 || other === name ? "" : FADED;
  for (const trace of traces) {
    const line = (
      /** @type {HTMLElement | null} */
      chart.querySelector(`.scatterlayer .trace${trace.uid}`)
    );
    if (line) line.style.opacity = opacity(trace.name);
  }
  const lines = chart.layout?.meta?.lines ?? [];
  for (
    const label of
    /** @type {NodeListOf<HTMLElement>} */
    chart.querySelectorAll(".annotation")
  ) {
    label.style.opacity = opacity(lines[Number(label.dataset.index)]);
  }
}

// src/mount.js
var deliverNow = (component, draw) => {
  draw(component.data);
  return () => {
  };
};
function mount(ViewType, deliver = deliverNow) {
  const views = /* @__PURE__ */ new WeakMap();
  return (component) => {
    const { parentElement } = component;
    const cancel = deliver(component, (data) => {
      const view = views.get(parentElement) ?? new ViewType(component, data);
      views.set(parentElement, view);
      view.component = component;
      view.refresh(data);
    });
    return () => {
      cancel();
      views.get(parentElement)?.dispose();
      views.delete(parentElement);
    };
  };
}

// src/plotly-charts.js
var SETTLE_MS = 100;
function watchPage(callback) {
  let timer;
  const run = () => {
    timer = void 0;
    callback();
  };
  const observer = new MutationObserver(() => {
    timer ??= setTimeout(run, SETTLE_MS);
  });
  observer.observe(document.body, { childList: true, subtree: true, attributeFilter: ["class"] });
  callback();
  return () => {
    clearTimeout(timer);
    observer.disconnect();
  };
}
var allCharts = () => [...document.querySelectorAll(".js-plotly-plot")].map((node) => (
  /** @type {PlotlyChart} */
  node
));
function clickTarget(meta, point) {
  const target = { ...point?.customdata?.go };
  for (
    const axis of
    /** @type {const} */
    ["x", "y"]
  ) {
    const name = meta?.go?.[axis], value = cellNumber(point?.[axis], meta?.ranks?.[axis]);
    if (name && value !== void 0 && Number.isFinite(value)) target[name] = value;
  }
  return target;
}
function cellNumber(value, ranks) {
  return ranks ? ranks[Math.round(Number(value))] : Number.parseInt(String(value).replace(/^\D+/, ""), 10);
}

// src/components/context-bar.js
var ContextBar = class {
  /** @type {WeakSet<PlotlyChart>} */
  known = /* @__PURE__ */ new WeakSet();
  /** @type {WeakSet<PlotlyChart>} */
  withLines = /* @__PURE__ */ new WeakSet();
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
  refresh() {
  }
  dispose() {
    this.stopWatching();
    this.barObserver.disconnect();
    this.isDisposed = true;
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
    const surface = (
      /** @type {HTMLElement | null} */
      chart.querySelector(".nsewdrag")
    );
    if (surface) surface.style.cursor = "pointer";
    if (this.known.has(chart) || !chart.on) return;
    this.known.add(chart);
    chart.on("plotly_click", (event) => {
      const target = clickTarget(chart.layout?.meta, event.points?.[0]);
      if (this.isDisposed || !Object.keys(target).length) return;
      this.component.setTriggerValue("go", { ...target, count: ++this.count });
    });
  }
};
function setPageProperty(name, value) {
  document.documentElement.style.setProperty(name, value);
}
var context_bar_default = mount(ContextBar);
export {
  context_bar_default as default
};
