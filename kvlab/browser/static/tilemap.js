// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/canvas.js src/components/tilemap.js src/dom.js src/mount.js src/tilemap/geometry.js src/tilemap/painter.js
// SHA-256 of the sources: f5b8336ff711bd8ac859c0680adbc8541638c64e184dc3a37522b621579a8d34
// SHA-256 of the code: 95d97f171ca983ea10dd7fd5df7964cd46e0950e7dcb43ca0797d017a6fb7b8b
// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}
function createElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== void 0) node.textContent = text;
  return node;
}
var Listeners = class {
  /** @type {(() => void)[]} */
  #removals = [];
  /**
   * @template {keyof DocumentEventMap} Type
   * @param {Node} node
   * @param {Type} type
   * @param {(event: DocumentEventMap[Type]) => void} handler
   * @param {AddEventListenerOptions} [options]
   */
  listen(node, type, handler, options) {
    const listener = (
      /** @type {EventListener} */
      handler
    );
    node.addEventListener(type, listener, options);
    this.add(() => node.removeEventListener(type, listener, options));
  }
  /**
   * @param {Element} node
   * @param {() => void} handler
   */
  onResize(node, handler) {
    const observer = new ResizeObserver(handler);
    observer.observe(node);
    this.add(() => observer.disconnect());
  }
  /** @param {() => void} removal */
  add(removal) {
    this.#removals.push(removal);
  }
  dispose() {
    for (const removal of this.#removals.splice(0)) removal();
  }
};

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

// src/canvas.js
function sizeCanvas(canvas, height, width = canvas.clientWidth) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = context2d(canvas);
  context.scale(ratio, ratio);
  return { context, width, height };
}
function context2d(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no 2D canvas");
  return (
    /** @type {Canvas extends HTMLCanvasElement ? CanvasRenderingContext2D : OffscreenCanvasRenderingContext2D} */
    context
  );
}
var rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
function pixelCanvas(width, height, fill) {
  const image = new ImageData(width, height), canvas = new OffscreenCanvas(width, height);
  fill(new Uint32Array(image.data.buffer));
  context2d(canvas).putImageData(image, 0, 0);
  return canvas;
}

// src/tilemap/geometry.js
var MIN_SPAN = 8;
function decodeValues(base64) {
  const characters = atob(base64), bytes = new Uint8Array(characters.length);
  for (let at = 0; at < characters.length; at++) bytes[at] = characters.charCodeAt(at);
  return new Int16Array(bytes.buffer);
}
function colourTable(stops) {
  const colours = stops.map(rgb);
  const bytes = new Uint8ClampedArray(257 * 4);
  for (let level = 0; level <= 256; level++) {
    const at = level / 256 * (colours.length - 1), low = Math.min(colours.length - 2, Math.floor(at));
    const [from, to] = [colours[low], colours[low + 1]];
    for (let channel = 0; channel < 3; channel++) {
      bytes[4 * level + channel] = from[channel] + (to[channel] - from[channel]) * (at - low);
    }
    bytes[4 * level + 3] = 255;
  }
  return new Uint32Array(bytes.buffer);
}
var colourLevel = (value) => value + 32895 >> 8;
function axisTicks(from, to) {
  const rough = (to - from) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10) * power);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at < to; at += step) ticks.push(at);
  return ticks;
}
function blockAt(edges, position) {
  let low = 0, high = edges.length - 1;
  while (high - low > 1) {
    const middle = low + high >> 1;
    if (edges[middle] <= position) low = middle;
    else high = middle;
  }
  return low;
}
function blockName(edges, texts, block) {
  const first = edges[block], last = edges[block + 1] - 1;
  return `${last > first ? `tokens ${first} to ${last}` : `token ${first}`} “${texts[block]}”`;
}
function windowAt(top, left, span, tokens) {
  const limit = (start) => Math.max(0, Math.min(tokens - span, start));
  return [limit(top), limit(top) + span, limit(left), limit(left) + span];
}
function zoomed([top, bottom, left, right], factor, x, y, tokens) {
  const span = Math.max(Math.min(MIN_SPAN, tokens), Math.min(tokens, (bottom - top) * factor));
  return windowAt(top + y * (bottom - top - span), left + x * (right - left - span), span, tokens);
}
function wholeTokens(view, tokens) {
  const [top, bottom, left] = view.map(Math.round), span = bottom - top, start = Math.min(left, tokens - span);
  return [top, bottom, start, start + span];
}

// src/tilemap/painter.js
var MARGIN = { left: 64, bottom: 44, top: 6, right: 6 };
function paintTile(rows, columns, values, scale) {
  const colours = colourTable(scale);
  return pixelCanvas(columns, rows, (pixels) => {
    for (let cell = 0; cell < values.length; cell++) pixels[cell] = colours[colourLevel(values[cell])];
  });
}
function drawMap(canvas, side, scene) {
  const width = side + MARGIN.left + MARGIN.right, height = side + MARGIN.top + MARGIN.bottom;
  canvas.style.width = `${width}px`;
  const { context } = sizeCanvas(canvas, height, width);
  context.save();
  context.beginPath();
  context.rect(MARGIN.left, MARGIN.top, side, side);
  context.clip();
  context.translate(MARGIN.left, MARGIN.top);
  drawTile(context, side, scene);
  drawOutlines(context, side, scene);
  drawCrosshair(context, side, scene);
  context.restore();
  drawAxes(context, side, scene, getComputedStyle(canvas).fontFamily);
}
function drawTile(context, side, { tile, window: [r0, r1, c0, c1], view: [top, bottom, left, right] }) {
  const across = side / (right - left), down = side / (bottom - top);
  context.imageSmoothingEnabled = false;
  context.drawImage(tile, (c0 - left) * across, (r0 - top) * down, (c1 - c0) * across, (r1 - r0) * down);
}
function drawOutlines(context, side, { outlines, outlineColour, view: [top, bottom, left, right] }) {
  const across = side / (right - left), down = side / (bottom - top);
  context.strokeStyle = outlineColour;
  context.lineWidth = 1.5;
  const stroke = ([a, b, c, d]) => {
    context.strokeRect((a - left) * across, (c - top) * down, (b - a) * across, (d - c) * down);
  };
  for (const [a, b, c, d] of outlines) {
    stroke([a, b, c, d]);
    if (a !== c || b !== d) stroke([c, d, a, b]);
  }
}
function drawCrosshair(context, side, { crosshair, ink }) {
  if (!crosshair) return;
  context.strokeStyle = ink;
  context.globalAlpha = 0.45;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, crosshair.y);
  context.lineTo(side, crosshair.y);
  context.moveTo(crosshair.x, 0);
  context.lineTo(crosshair.x, side);
  context.stroke();
  context.globalAlpha = 1;
}
function drawAxes(context, side, { view: [top, bottom, left, right], ink, quiet }, fontFamily) {
  const { left: x, top: y } = MARGIN;
  context.fillStyle = quiet;
  context.strokeStyle = quiet;
  context.font = `12px ${fontFamily}`;
  context.strokeRect(x, y, side, side);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of axisTicks(top, bottom)) {
    context.fillText(String(tick), x - 8, y + (tick + 0.5 - top) / (bottom - top) * side);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of axisTicks(left, right)) {
    context.fillText(String(tick), x + (tick + 0.5 - left) / (right - left) * side, y + side + 7);
  }
  context.fillStyle = ink;
  context.font = `13px ${fontFamily}`;
  context.fillText("token (position)", x + side / 2, y + side + 26);
  context.save();
  context.translate(13, y + side / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("token (position)", 0, -7);
  context.restore();
}

// src/components/tilemap.js
var REST_MS = 70;
var HINT = "Hover for the tokens and the value; wheel to zoom, drag to move, double-click for the whole text.";
var TileMap = class {
  listeners = new Listeners();
  /** @type {string | undefined} */
  identity;
  /** @type {string | null} */
  requested = null;
  // window that the server has not answered yet
  isImmediate = false;
  /** @type {{ x: number, y: number } | null} */
  pointer = null;
  /** @type {{ x: number, y: number, view: Window } | null} */
  drag = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer;
  /**
   * @param {Component} component
   * @param {Data} data
   */
  constructor(component, data) {
    this.component = component;
    this.root = find(component.parentElement, ".kv-map");
    this.canvas = /** @type {HTMLCanvasElement} */
    find(this.root, "canvas");
    this.detail = find(this.root, ".detail");
    this.data = data;
    this.view = data.window;
    this.load(data);
    const { canvas, listeners } = this;
    listeners.listen(canvas, "wheel", (event) => this.onWheel(event), { passive: false });
    listeners.listen(canvas, "pointerdown", (event) => this.startDrag(event));
    listeners.listen(canvas, "pointermove", (event) => this.onMove(event));
    listeners.listen(canvas, "pointerup", (event) => this.endDrag(event));
    listeners.listen(canvas, "pointerleave", () => {
      this.pointer = null;
      this.draw();
      this.showHint();
    });
    listeners.listen(canvas, "dblclick", () => this.press("whole"));
    listeners.listen(canvas, "keydown", (event) => this.onKey(event));
    for (const button of this.root.querySelectorAll("button")) {
      listeners.listen(button, "click", () => this.press(button.dataset.act));
    }
    listeners.onResize(this.root, () => this.draw());
  }
  dispose() {
    clearTimeout(this.timer);
    this.listeners.dispose();
  }
  /** @param {Data} data */
  load(data) {
    this.data = data;
    this.values = decodeValues(data.values);
    this.tile = paintTile(data.rows, data.columns, this.values, data.scale);
  }
  /** @param {Data} data */
  refresh(data) {
    if (data !== this.data) this.load(data);
    if (!this.requested || data.identity !== this.identity || this.requested === String(data.window)) {
      this.view = data.window;
      this.requested = null;
    }
    this.identity = data.identity;
    find(this.root, ".ramp").style.background = `linear-gradient(to right, ${data.scale.join(", ")})`;
    this.root.dataset.window = data.window.join(",");
    this.root.dataset.identity = data.identity;
    this.draw();
    this.showHint();
  }
  get side() {
    return Math.max(240, Math.min(this.root.clientWidth - MARGIN.left - MARGIN.right, 760));
  }
  draw() {
    if (!this.root.clientWidth || !this.tile) return;
    const crosshair = this.drag ? null : this.pointer;
    drawMap(this.canvas, this.side, { ...this.data, tile: this.tile, view: this.view, crosshair });
  }
  /** @param {MouseEvent} event */
  place(event) {
    const box = this.canvas.getBoundingClientRect(), { side } = this;
    const x = event.clientX - box.left - MARGIN.left, y = event.clientY - box.top - MARGIN.top;
    return { x, y, side, isInside: x >= 0 && y >= 0 && x < side && y < side };
  }
  /** @param {PointerEvent} event */
  onMove(event) {
    const { x, y, side, isInside } = this.place(event);
    if (this.drag) {
      const [top2, bottom2, left2] = this.drag.view, span = bottom2 - top2;
      this.move(top2 - (y - this.drag.y) / side * span, left2 - (x - this.drag.x) / side * span, span);
      return;
    }
    this.pointer = isInside ? { x, y } : null;
    this.draw();
    const [top, bottom, left, right] = this.view;
    if (isInside) this.showValue(top + y / side * (bottom - top), left + x / side * (right - left));
    else this.showHint();
  }
  /**
   * @param {number} row
   * @param {number} column
   */
  showValue(row, column) {
    const { rowEdges, columnEdges, rowTexts, columnTexts, columns, window: [r0, r1, c0, c1] } = this.data;
    if (!this.values || row < r0 || row >= r1 || column < c0 || column >= c1) {
      this.showHint();
      return;
    }
    const i = blockAt(rowEdges, row), j = blockAt(columnEdges, column), cosine = this.values[i * columns + j] / 32767;
    this.detail.replaceChildren(
      createElement("strong", "", `cosine ${cosine.toFixed(4)}`),
      createElement("span", "", `${blockName(rowEdges, rowTexts, i)} with ${blockName(columnEdges, columnTexts, j)}`)
    );
  }
  showHint() {
    this.detail.replaceChildren(createElement("span", "", HINT));
  }
  /** @param {WheelEvent} event */
  onWheel(event) {
    const { x, y, side } = this.place(event);
    if (x < 0 || y < 0 || x > side || y > side) return;
    event.preventDefault();
    this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 6e-3), x / side, y / side);
  }
  /** @param {number} factor */
  zoom(factor, x = 0.5, y = 0.5) {
    this.show(zoomed(this.view, factor, x, y, this.data.tokens));
  }
  /**
   * @param {number} top
   * @param {number} left
   * @param {number} span
   */
  move(top, left, span) {
    this.show(windowAt(top, left, span, this.data.tokens));
  }
  /** @param {Window} view */
  show(view) {
    this.view = view;
    this.requested = "moving";
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.request(), this.isImmediate ? 0 : REST_MS);
    this.isImmediate = false;
  }
  request() {
    const wanted = wholeTokens(this.view, this.data.tokens);
    if (String(wanted) === String(this.data.window)) {
      this.requested = null;
      this.view = wanted;
      this.draw();
      return;
    }
    this.requested = String(wanted);
    this.component.setStateValue("window", wanted);
  }
  /** @param {PointerEvent} event */
  startDrag(event) {
    const { x, y } = this.place(event);
    this.drag = { x, y, view: this.view };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragging");
  }
  /** @param {PointerEvent} event */
  endDrag(event) {
    this.drag = null;
    this.canvas.classList.remove("dragging");
    this.canvas.releasePointerCapture(event.pointerId);
  }
  /** @param {string | undefined} action */
  press(action) {
    const [top, bottom] = this.view;
    this.isImmediate = true;
    if (action === "whole") this.move(0, 0, this.data.tokens);
    else if (action === "diagonal") this.move(top, top, bottom - top);
    else this.zoom(action === "in" ? 0.5 : 2);
  }
  /** @param {KeyboardEvent} event */
  onKey(event) {
    const [top, bottom, left] = this.view, span = bottom - top, by = span / 8;
    const actions = {
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.move(0, 0, this.data.tokens),
      ArrowUp: () => this.move(top - by, left, span),
      ArrowDown: () => this.move(top + by, left, span),
      ArrowLeft: () => this.move(top, left - by, span),
      ArrowRight: () => this.move(top, left + by, span)
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    this.isImmediate = !event.repeat;
    action();
  }
};
var tilemap_default = mount(TileMap);
export {
  tilemap_default as default
};
