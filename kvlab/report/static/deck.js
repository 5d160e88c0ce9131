/* Leads through the slides; a figure is drawn once, the next one ahead of time. */

const slides = [...document.querySelectorAll("section")];
const drawn = new Set();
let at = 0;

function draw(place) {
  if (!figures[place] || drawn.has(place)) return;
  drawn.add(place);
  const { data, layout } = figures[place];
  Plotly.newPlot(`figure-${place}`, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

function show(place) {
  at = Math.max(0, Math.min(slides.length - 1, place));
  slides.forEach((slide, number) => slide.classList.toggle("shown", number === at));
  location.replace(`#${at + 1}`);
  draw(at);
  if (drawn.has(at)) Plotly.Plots.resize(`figure-${at}`);
  document.body.dataset.at = at + 1;
  setTimeout(() => ahead(at + 1), 60);
}

/* Plotly measures what it draws into: a slide that is not shown is laid out out of sight. */
function ahead(place) {
  if (place >= slides.length || !figures[place] || drawn.has(place)) return;
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
  n: () => document.body.classList.toggle("bare"),
};
document.addEventListener("keydown", (event) => {
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); act(); }
});
window.addEventListener("hashchange", () => { const asked = Number(location.hash.slice(1)); if (asked - 1 !== at && asked > 0) show(asked - 1); });
window.addEventListener("resize", () => { if (drawn.has(at)) Plotly.Plots.resize(`figure-${at}`); });
window.addEventListener("beforeprint", () => slides.forEach((slide, place) => { slide.classList.add("shown"); draw(place); }));
show(Math.max(0, Number(location.hash.slice(1)) - 1) || 0);
