// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/first-paint.js
// SHA-256 of the sources: fae8879ea0817f4769439c9c7edd90fed2f68ed796b90c4fe7321398b11f2d7e
// SHA-256 of the code: 955c3a2464f3c8d82f32aee412629b75b1beee8ebdd90b7fc5bd54f4b727eef7
// src/components/first-paint.js
var TIMEOUT_MS = 3e3;
var POLL_MS = 40;
function reportFirstPaint(component) {
  const deadline = performance.now() + TIMEOUT_MS;
  let timer;
  const report = () => component.setTriggerValue("painted", true);
  const poll = () => {
    if (isDrawn() || performance.now() > deadline) requestAnimationFrame(() => requestAnimationFrame(report));
    else timer = setTimeout(poll, POLL_MS);
  };
  poll();
  return () => clearTimeout(timer);
}
function isDrawn() {
  if (document.querySelector(".js-plotly-plot .main-svg")) return true;
  return [...document.querySelectorAll("div")].some((node) => node.shadowRoot?.querySelector(".kv-strip[data-step]"));
}
export {
  reportFirstPaint as default
};
