/* Ties the charts of the page to a text: put before a component that shows one. A figure says in `layout.meta.tokens`
   which axis runs along the text: {axis: "x" or "y", offset}, position = offset + value; labels begin with the position. */

const LOOK_MS = 700;

class Charts {
  constructor(onHover, onLeave) {
    this.onHover = onHover;
    this.onLeave = onLeave;
    this.known = new WeakSet();
    this.lines = new Map();
    this.look();
    this.timer = setInterval(() => this.look(), LOOK_MS);
  }

  dispose() {
    clearInterval(this.timer);
    this.unmark();
    this.gone = true;
  }

  linked() { return [...document.querySelectorAll(".js-plotly-plot")].filter((chart) => chart.layout?.meta?.tokens && chart._fullLayout); }

  /* Charts come and go with reruns of the page. */
  look() {
    for (const chart of this.linked()) {
      if (this.known.has(chart) || !chart.on) continue;
      this.known.add(chart);
      chart.dataset.linked = "yes";
      chart.on("plotly_hover", (event) => {
        const position = this.gone ? null : this.position(chart, event.points?.[0]);
        if (position !== null) this.onHover(position, chart);
      });
      chart.on("plotly_unhover", () => { if (!this.gone) this.onLeave(); });
    }
  }

  position(chart, point) {
    const { axis, offset } = chart.layout.meta.tokens;
    const value = point?.[axis];
    const number = typeof value === "number" ? value : Number.parseInt(value, 10);
    return Number.isFinite(number) ? Math.round(number) + offset : null;
  }

  mark(position, except) {
    this.unmark();
    for (const chart of this.linked()) if (chart !== except) this.draw(chart, position);
  }

  draw(chart, position) {
    const { axis, offset } = chart.layout.meta.tokens, { xaxis, yaxis } = chart._fullLayout;
    const along = axis === "x" ? xaxis : yaxis, across = axis === "x" ? yaxis : xaxis;
    const holder = chart.querySelector(".svg-container");
    const at = along.d2p(this.value(along, position - offset));
    if (!holder || !Number.isFinite(at) || at < 0 || at > along._length) return;
    const line = document.createElement("div");
    const place = axis === "x"
      ? { left: `${along._offset + at - 1}px`, top: `${across._offset}px`, width: "2px", height: `${across._length}px` }
      : { top: `${along._offset + at - 1}px`, left: `${across._offset}px`, height: "2px", width: `${across._length}px` };
    Object.assign(line.style, { position: "absolute", pointerEvents: "none", background: "currentColor", opacity: "0.75", zIndex: 5, ...place });
    line.className = "kv-token-mark";
    holder.append(line);
    this.lines.set(chart, line);
  }

  /* On an axis of labels: the last block that begins at or before the position. */
  value(axis, number) {
    if (axis.type !== "category") return number;
    let found = axis._categories[0];
    for (const label of axis._categories) if (Number.parseInt(label, 10) <= number) found = label;
    return found;
  }

  unmark() {
    for (const line of this.lines.values()) line.remove();
    this.lines.clear();
  }
}
