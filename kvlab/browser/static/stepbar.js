/* The bar of a view that goes through steps: buttons, slider and keys, and what it says of the step in view.
   It stands in the view's [data-part="bar"], and calls the view's move(by), go(index), toggle(), nextEvent(), stop(). */

const STEP_ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M9 3h2v10H9zM7 3v10L1 8z", play: "M4 3v10l8-5z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3h2v10H5zM9 3v10l6-5z", last: "M11 3h2v10h-2zM3 3v10l7-5z",
};
const STEP_BAR = `
  <button data-part="first" aria-label="First step" title="First step (Home)"></button>
  <button data-part="back" aria-label="Step back" title="Step back (left arrow)"></button>
  <button data-part="play" aria-label="Play" title="Play or pause (space)"></button>
  <button data-part="next" aria-label="Step forward" title="Step forward (right arrow)"></button>
  <button data-part="last" aria-label="Last step" title="Last step (End)"></button>
  <button data-part="event" title="Next step in which a slot left (n)">next event</button>
  <input data-part="slider" type="range" min="0" step="1" aria-label="Step">
  <span class="step" data-part="step"></span>
  <span class="phase" data-part="phase"></span>`;
const FAR = 1e9;

class StepBar {
  constructor(view) {
    this.view = view;
    this.cleanups = [];
    view.part("bar").innerHTML = STEP_BAR;
    const press = { first: () => view.move(-FAR), back: () => view.move(-1), play: () => view.toggle(), next: () => view.move(1),
      last: () => view.move(FAR), event: () => view.nextEvent() };
    for (const [name, action] of Object.entries(press)) {
      if (STEP_ICONS[name]) view.part(name).replaceChildren(this.icon(STEP_ICONS[name]));
      this.on(view.part(name), "click", action);
    }
    this.keys = { Home: press.first, ArrowLeft: press.back, " ": press.play, ArrowRight: press.next, End: press.last, n: press.event };
    this.on(view.part("slider"), "input", (event) => { view.stop(); view.go(Number(event.target.value)); });
    this.on(document, "keydown", (event) => this.key(event));
  }

  on(node, type, handler) {
    node.addEventListener(type, handler);
    this.cleanups.push(() => node.removeEventListener(type, handler));
  }

  icon(shape) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", shape);
    svg.append(path);
    return svg;
  }

  dispose() { this.cleanups.forEach((clean) => clean()); }

  /* Step `at` of `steps`; `why` is the reason for a step nobody chose, `phase` a few words about it. */
  show(steps, at, why, phase) {
    const { view } = this, slider = view.part("slider"), step = view.part("step"), alone = steps.length < 2;
    // In the place of controls that lead nowhere the bar says that there is one step.
    for (const name of ["first", "back", "play", "next", "last", "event", "slider"]) view.part(name).hidden = alone;
    slider.max = steps.length - 1;
    slider.value = Math.max(0, steps.indexOf(at));
    step.textContent = alone ? "one step" : `step ${at} of ${steps[steps.length - 1]}`;
    step.title = why ?? "";
    step.classList.toggle("why", Boolean(why));
    view.part("phase").textContent = phase;
  }

  playing(on) {
    const button = this.view.part("play");
    button.querySelector("path").setAttribute("d", on ? STEP_ICONS.pause : STEP_ICONS.play);
    button.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  key(event) {
    const target = event.composedPath()[0], inside = event.composedPath().includes(this.view.root);
    if (!(inside || ownsNoKeys(target)) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!this.keys[event.key] || (target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    this.keys[event.key]();
  }
}
