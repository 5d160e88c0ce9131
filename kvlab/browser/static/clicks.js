/* Tells the page how high its bar is, and watches charts: a click on a cell of a chart goes where the cell says: `layout.meta.go` names what x and y are, as {x: "head"}. */

const LOOK_MS = 700;
const watches = new WeakMap();

export default function (component) {
  const { parentElement } = component;
  const box = (parentElement.host ?? parentElement).closest("[data-testid=stElementContainer]");
  if (box) box.style.display = "none";
  let watch = watches.get(parentElement);
  if (!watch) { watch = new Watch(); watches.set(parentElement, watch); }
  watch.component = component;
  return () => { watch.dispose(); watches.delete(parentElement); };
}

class Watch {
  constructor() {
    this.known = new WeakSet();
    this.count = 0;
    this.measure = new ResizeObserver(() => this.tellHeight());
    this.look();
    this.timer = setInterval(() => this.look(), LOOK_MS);
  }

  dispose() { clearInterval(this.timer); this.measure.disconnect(); this.gone = true; }

  /* The style sheet of the page knows neither. */
  tellGround() {
    const ground = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
    document.documentElement.style.setProperty("--kv-ground", ground);
  }

  tellHeight() {
    const height = this.bar?.getBoundingClientRect().height;
    if (height) document.documentElement.style.setProperty("--kv-bar", `${Math.round(height)}px`);
  }

  /* Charts come and go with reruns of the page. */
  look() {
    this.tellGround();
    const bar = document.querySelector(".st-key-context-bar")?.parentElement;
    if (bar && bar !== this.bar) { this.bar = bar; this.measure.disconnect(); this.measure.observe(bar); }
    for (const chart of document.querySelectorAll(".js-plotly-plot")) {
      const leads = chart.layout?.meta?.go;
      const drag = chart.querySelector(".nsewdrag");
      if (drag && leads) drag.style.cursor = "pointer";
      if (!leads || this.known.has(chart) || !chart.on) continue;
      this.known.add(chart);
      chart.on("plotly_click", (event) => { if (!this.gone) this.go(chart.layout?.meta ?? {}, event.points?.[0]); });
    }
  }

  /* A place on an axis: a number, one that a label such as `12 “word”` begins with, or the number of a rank. */
  number(value, ranks) {
    return ranks ? ranks[Math.round(Number(value))] : Number.parseInt(String(value).replace(/^\D+/, ""), 10);
  }

  /* Numbered, so that the same cell clicked again counts as another click. */
  go({ go: leads, ranks }, point) {
    const asked = { ...point?.customdata?.go };
    for (const axis of ["x", "y"]) {
      const value = this.number(point?.[axis], ranks?.[axis]);
      if (leads?.[axis] && Number.isFinite(value)) asked[leads[axis]] = value;
    }
    if (Object.keys(asked).length) this.component.setTriggerValue("go", { ...asked, count: ++this.count });
  }
}
