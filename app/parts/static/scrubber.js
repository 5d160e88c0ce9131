/* A step scrubber for pages whose figures the server draws: it tells where the reader stopped, and while playing waits
   for each picture before it asks for the next. */

const REST_MS = 160, PLAY_MS = 350;
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M9 3h2v10H9zM7 3v10L1 8z", play: "M4 3v10l8-5z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3h2v10H5zM9 3v10l6-5z", last: "M11 3h2v10h-2zM3 3v10l7-5z",
};
const bars = new WeakMap();

export default function (component) {
  const { parentElement, data } = component;
  let bar = bars.get(parentElement);
  if (!bar) { bar = new Bar(parentElement); bars.set(parentElement, bar); }
  bar.component = component;
  bar.refresh(data);
  return () => { bar.dispose(); bars.delete(parentElement); };
}

function icon(shape) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shape);
  svg.append(path);
  return svg;
}

class Bar {
  constructor(root) {
    this.root = root.querySelector(".kv-scrubber");
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.cleanups = [];
    const on = (node, type, handler) => { node.addEventListener(type, handler); this.cleanups.push(() => node.removeEventListener(type, handler)); };
    for (const name of ["first", "back", "play", "next", "last"]) this.part(name).replaceChildren(icon(ICONS[name]));
    on(this.part("first"), "click", () => this.move(-1e9));
    on(this.part("back"), "click", () => this.move(-1));
    on(this.part("play"), "click", () => this.toggle());
    on(this.part("next"), "click", () => this.move(1));
    on(this.part("last"), "click", () => this.move(1e9));
    on(this.part("event"), "click", () => this.nextEvent());
    on(this.part("slider"), "input", (event) => { this.playing(false); this.go(Number(event.target.value)); });
    on(document, "keydown", (event) => this.key(event));
  }

  dispose() {
    this.playing(false);
    clearTimeout(this.wish);
    this.cleanups.forEach((clean) => clean());
  }

  refresh(data) {
    const told = this.data?.step;
    this.data = data;
    if (data.identity !== this.identity || data.step !== told || this.index === undefined) this.index = Math.max(0, data.steps.indexOf(data.step));
    this.identity = data.identity;
    this.draw();
    if (this.isPlaying) { clearTimeout(this.beat); this.beat = setTimeout(() => this.forward(), PLAY_MS); }
  }

  draw() {
    const { steps, texts } = this.data, step = steps[this.index], slider = this.part("slider");
    slider.max = steps.length - 1;
    slider.value = this.index;
    slider.disabled = steps.length < 2;
    const why = step === this.data.step ? this.data.why : "";
    this.part("step").textContent = `step ${step} of ${steps[steps.length - 1]}`;
    this.part("step").title = why ?? "";
    this.part("step").classList.toggle("why", Boolean(why));
    this.part("phase").textContent = texts[this.index] ?? "";
    this.root.dataset.step = this.data.step;
  }

  go(index) {
    this.index = Math.max(0, Math.min(this.data.steps.length - 1, index));
    this.draw();
    clearTimeout(this.wish);
    this.wish = setTimeout(() => this.tell(), REST_MS);
  }

  move(by) { this.playing(false); this.go(this.index + by); }

  tell() {
    const step = this.data.steps[this.index];
    if (step !== this.data.step) this.component.setStateValue("step", step);
  }

  nextEvent() {
    this.playing(false);
    const here = this.data.steps[this.index], later = this.data.events.find((step) => step > here);
    if (later !== undefined) this.go(this.data.steps.indexOf(later));
  }

  toggle() {
    if (this.isPlaying) { this.playing(false); return; }
    if (this.index === this.data.steps.length - 1) this.index = -1;
    this.playing(true);
    this.forward();
  }

  forward() {
    if (!this.isPlaying) return;
    if (this.index >= this.data.steps.length - 1) { this.playing(false); return; }
    this.index++;
    this.draw();
    this.tell();
  }

  playing(on) {
    this.isPlaying = on;
    clearTimeout(this.beat);
    const button = this.part("play");
    button.querySelector("path").setAttribute("d", on ? ICONS.pause : ICONS.play);
    button.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  key(event) {
    const target = event.composedPath()[0], inside = event.composedPath().includes(this.root);
    if (!(inside || ownsNoKeys(target)) || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.move(-1), ArrowRight: () => this.move(1), Home: () => this.move(-1e9), End: () => this.move(1e9),
      " ": () => this.toggle(), n: () => this.nextEvent(),
    };
    if (!actions[event.key] || (target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    actions[event.key]();
  }
}
