// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/preload-plotly.js src/dom.js
// SHA-256 of the sources: 6e19942413e6555b28970f9ebe6bd8880cf97ba9ca2d00056ddedda78c79f0e7
// SHA-256 of the code: 121cbb9f28bff7a1e6ad0de150b4434d3cdaab839df3b27a9110eb56e4fc2822
// src/dom.js
function hideContainer(root) {
  const element = root instanceof ShadowRoot ? root.host : root;
  const container = (
    /** @type {HTMLElement | null} */
    element.closest("[data-testid=stElementContainer]")
  );
  if (container) container.style.display = "none";
}

// src/components/preload-plotly.js
function preloadPlotly({ parentElement, data }) {
  hideContainer(parentElement);
  for (const script of data.scripts) import(new URL(script, document.baseURI).href).catch(() => {
  });
}
export {
  preloadPlotly as default
};
