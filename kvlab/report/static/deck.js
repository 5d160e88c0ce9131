/* Leads through the slides. A chart is drawn once, the next one ahead of time; a view that listens to keys lives while
   it is seen. */

const slides = [...document.querySelectorAll("section")];
const drawn = new Set();
let at = 0, leave = null;

const USUAL = [1280, 720], LEAST = 0.6;  // the window for which letters of a chart have their size: they grow with it, and shrink

function draw(place) {
  if (given[place]?.view !== "figure") { shrink(place); return; }
  if (drawn.has(place)) { fit(place); return; }
  drawn.add(place);
  const { data, layout, frames, config } = given[place];
  fit(place);
  Plotly.newPlot(`chart-${place}`, { data, layout, frames: frames ?? [], config });
}

/* On paper a chart has the size it takes of the page of deck.css: transformed, it would become a picture of many megabytes.
   One whose texts would cover each other in a lower room is drawn at its least height and made smaller as a whole. */
const PAGE = [1280, 712];
let paper = false;

function fit(place) {
  const chart = document.getElementById(`chart-${place}`), room = chart.parentElement;
  let times = paper ? 1 : Math.max(LEAST, Math.min(innerWidth / USUAL[0], innerHeight / USUAL[1]));
  const slide = room.closest("section"), share = [room.clientWidth / slide.clientWidth, room.clientHeight / slide.clientHeight];
  let [width, height] = share.map((part, side) => (paper ? part * PAGE[side] : part * [slide.clientWidth, slide.clientHeight][side] / times));
  const smaller = Math.min(1, height / (given[place].least ?? height));
  times *= smaller;
  [width, height] = [width / smaller, height / smaller];
  const scaled = times === 1 ? {} : paper ? { zoom: times } : { transform: `scale(${times})` };
  Object.assign(chart.style, { width: `${Math.floor(width)}px`, height: `${Math.floor(height)}px`, transform: "", zoom: "", ...scaled });
  if (chart.data) Plotly.Plots.resize(chart);
}

/* A table or a text that is a little too large for its slide is written smaller; one that is far too large scrolls. */
const SMALLER = 0.7, SMALLEST = 11;

function shrink(place) {
  const box = slides[place].querySelector(".scroll"), written = box?.querySelector("table") ?? box;
  if (!box) return;
  written.style.fontSize = "";
  if (paper) return;
  const least = Math.max(SMALLEST, SMALLER * parseFloat(getComputedStyle(written).fontSize));
  for (const [room, taken] of [["clientWidth", "scrollWidth"], ["clientHeight", "scrollHeight"]]) {
    const before = written.style.fontSize, over = () => box[taken] > box[room] + 1;
    for (let size = parseFloat(getComputedStyle(written).fontSize) - 0.5; over() && size >= least; size -= 0.5) written.style.fontSize = `${size}px`;
    if (over()) written.style.fontSize = before;
  }
}

function live(place) {
  leave?.();
  leave = null;
  const mount = views[given[place]?.view];
  if (!mount) return;
  const own = given[place], keep = (name, value) => { if (name === "step") own.step = value; if (name === "token") own.selected = value; };
  leave = mount({ parentElement: document.querySelector(`#figure-${place} .alive`), data: own, setStateValue: keep, setTriggerValue: keep });
}

function show(place) {
  const next = Math.max(0, Math.min(slides.length - 1, place)), moved = next !== at || !slides[next].classList.contains("shown");
  at = next;
  slides.forEach((slide, number) => slide.classList.toggle("shown", number === at));
  location.replace(`#${at + 1}`);
  draw(at);
  if (moved) { document.activeElement?.blur(); live(at); }
  document.body.dataset.at = at + 1;
  setTimeout(() => ahead(at + 1), 60);
}

/* Plotly measures what it draws into: a slide that is not shown is laid out out of sight. */
function ahead(place) {
  if (given[place]?.view !== "figure" || drawn.has(place)) return;
  const slide = slides[place];
  slide.style.cssText = "display:flex;position:fixed;inset:0;visibility:hidden";
  draw(place);
  setTimeout(() => { slide.style.cssText = ""; }, 0);
}

const keys = {
  ArrowRight: () => show(at + 1), PageDown: () => show(at + 1), " ": () => show(at + 1),
  ArrowLeft: () => show(at - 1), PageUp: () => show(at - 1),
  Home: () => show(0), End: () => show(slides.length - 1),
  f: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()),
  n: () => { document.body.classList.toggle("origins"); show(at); },
};
/* Before anything else hears of a key; what has the focus within a slide keeps its own. */
window.addEventListener("keydown", (event) => {
  const inside = event.target.closest?.(".alive");
  if (inside && event.key === "Escape") { event.target.blur(); return; }
  if (inside && !event.key.startsWith("Page")) return;
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); event.stopPropagation(); act(); }
}, true);
window.addEventListener("hashchange", () => { const asked = Number(location.hash.slice(1)); if (asked - 1 !== at && asked > 0) show(asked - 1); });
window.addEventListener("resize", () => { if (paper) drawn.forEach(fit); else draw(at); });
window.addEventListener("beforeprint", () => { paper = true; slides.forEach((slide, place) => { slide.classList.add("shown"); draw(place); }); });
window.addEventListener("afterprint", () => { paper = false; show(at); });
show(Math.max(0, Number(location.hash.slice(1)) - 1) || 0);
/* The printer does not wait for a picture: a chart with one is drawn before it is asked for. */
given.forEach((one, place) => { if (one?.data?.some(({ type }) => type === "image")) ahead(place); });
