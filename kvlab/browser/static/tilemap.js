/* A similarity map as tiles: the server sends one window of block means (or maxima, or pairs), the browser draws it,
   zooms and drags it at once, and asks for the sharp window when the hand rests. */

/* A wheel or a drag goes on: the tile is asked for when the hand rests. A button or a key is asked for at once. */
const REST_MS = 70, MIN_SPAN = 8;

class TileMap extends TilePicture {
  constructor(root) {
    super();
    this.root = root.querySelector(".kv-map");
    this.canvas = this.root.querySelector("canvas");
    this.detail = this.root.querySelector(".detail");
    this.cleanups = [];
    const on = (node, type, handler, options) => {
      node.addEventListener(type, handler, options);
      this.cleanups.push(() => node.removeEventListener(type, handler, options));
    };
    on(this.canvas, "wheel", (event) => this.wheel(event), { passive: false });
    on(this.canvas, "pointerdown", (event) => this.grab(event));
    on(this.canvas, "pointermove", (event) => this.hover(event));
    on(this.canvas, "pointerup", (event) => this.release(event));
    on(this.canvas, "pointerleave", () => { this.pointer = null; this.draw(); this.rest(); });
    on(this.canvas, "dblclick", () => { this.atOnce = true; this.whole(); });
    on(this.canvas, "keydown", (event) => this.key(event));
    this.root.querySelectorAll("button").forEach((button) => on(button, "click", () => this.act(button.dataset.act)));
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.root);
    this.cleanups.push(() => observer.disconnect());
  }

  refresh(data) {
    this.data = data;
    this.values = decode(data.values);
    this.paint();
    /* A tile that answers an older wish must not move the window back under the reader's hand. */
    if (!this.asked || data.identity !== this.identity || this.asked === String(data.window)) {
      this.view = [...data.window];
      this.asked = null;
    }
    this.identity = data.identity;
    this.root.querySelector(".ramp").style.background = `linear-gradient(to right, ${data.scale.join(", ")})`;
    this.root.dataset.window = data.window.join(",");
    this.root.dataset.identity = data.identity;
    this.draw();
    this.rest();
  }

  dispose() { clearTimeout(this.wish); this.cleanups.forEach((clean) => clean()); }

  place(event) {
    const box = this.canvas.getBoundingClientRect(), side = this.size();
    return { x: event.clientX - box.left - LEFT, y: event.clientY - box.top - TOP, side };
  }

  hover(event) {
    const { x, y, side } = this.place(event);
    if (this.dragging) { this.drag(x, y, side); return; }
    this.pointer = x >= 0 && y >= 0 && x < side && y < side ? { x, y } : null;
    this.draw();
    if (!this.pointer) { this.rest(); return; }
    const [top, bottom, left, right] = this.view;
    this.say(top + (y / side) * (bottom - top), left + (x / side) * (right - left));
  }

  block(edges, position) {
    let low = 0, high = edges.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (edges[middle] <= position) low = middle; else high = middle; }
    return low;
  }

  say(row, column) {
    const { rowEdges, columnEdges, rowTexts, columnTexts, columns, window: [r0, r1, c0, c1] } = this.data;
    if (row < r0 || row >= r1 || column < c0 || column >= c1) { this.rest(); return; }
    const i = this.block(rowEdges, row), j = this.block(columnEdges, column), value = this.values[i * columns + j] / 32767;
    const name = (edges, texts, at) => (edges[at + 1] - edges[at] > 1 ? `tokens ${edges[at]} to ${edges[at + 1] - 1}` : `token ${edges[at]}`) + ` “${texts[at]}”`;
    this.tell([[`cosine ${value.toFixed(4)}`, true], [`${name(rowEdges, rowTexts, i)} with ${name(columnEdges, columnTexts, j)}`, false]]);
  }

  rest() { this.tell([["Hover for the tokens and the value; wheel to zoom, drag to move, double-click for the whole text.", false]]); }

  tell(parts) {
    this.detail.replaceChildren(...parts.map(([text, strong]) => {
      const node = document.createElement(strong ? "strong" : "span");
      node.textContent = text;
      return node;
    }));
  }

  wheel(event) {
    const { x, y, side } = this.place(event);
    if (x < 0 || y < 0 || x > side || y > side) return;
    event.preventDefault();
    this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), x / side, y / side);
  }

  zoom(factor, x = 0.5, y = 0.5) {
    const [top, bottom, left, right] = this.view, tokens = this.data.tokens;
    const span = Math.max(Math.min(MIN_SPAN, tokens), Math.min(tokens, (bottom - top) * factor));
    this.move(top + y * (bottom - top - span), left + x * (right - left - span), span);
  }

  move(top, left, span) {
    const limit = (value) => Math.max(0, Math.min(this.data.tokens - span, value));
    this.view = [limit(top), limit(top) + span, limit(left), limit(left) + span];
    this.asked = "moving";
    this.draw();
    clearTimeout(this.wish);
    this.wish = setTimeout(() => this.ask(), this.atOnce ? 0 : REST_MS);
    this.atOnce = false;
  }

  ask() {
    const whole = this.view.map(Math.round);
    const span = whole[1] - whole[0];
    const wished = [whole[0], whole[0] + span, Math.min(whole[2], this.data.tokens - span), Math.min(whole[2], this.data.tokens - span) + span];
    if (String(wished) === String(this.data.window)) { this.asked = null; this.view = wished; this.draw(); return; }
    this.asked = String(wished);
    this.component.setStateValue("window", wished);
  }

  grab(event) {
    const { x, y } = this.place(event);
    this.dragging = { x, y, view: [...this.view] };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragging");
  }

  drag(x, y, side) {
    const [top, bottom, left] = this.dragging.view, span = bottom - top;
    this.move(top - ((y - this.dragging.y) / side) * span, left - ((x - this.dragging.x) / side) * span, span);
  }

  release(event) {
    this.dragging = null;
    this.canvas.classList.remove("dragging");
    this.canvas.releasePointerCapture(event.pointerId);
  }

  whole() { this.move(0, 0, this.data.tokens); }

  act(name) {
    this.atOnce = true;
    if (name === "whole") this.whole();
    else if (name === "diagonal") { const [top, bottom] = this.view; this.move(top, top, bottom - top); }
    else this.zoom(name === "in" ? 0.5 : 2);
  }

  key(event) {
    const [top, bottom, left] = this.view, span = bottom - top, by = span / 8;
    const actions = {
      "+": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.whole(),
      ArrowUp: () => this.move(top - by, left, span), ArrowDown: () => this.move(top + by, left, span),
      ArrowLeft: () => this.move(top, left - by, span), ArrowRight: () => this.move(top, left + by, span),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    this.atOnce = !event.repeat;
    actions[event.key]();
  }
}

export default mounted(TileMap);
