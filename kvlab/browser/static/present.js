// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/present.js src/dom.js
// SHA-256 of the sources: 82e57e22f211499891598f60918cf26915862bd756d0001631ccd81ba4810ea6
// SHA-256 of the code: dd7fd6364c15196c8504114d96f9707d902850afe8fc434b8ff51713cfd8b420
// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}

// src/components/present.js
var LIFETIME_MS = 6e4;
function addPresentButton({ parentElement, data }) {
  find(parentElement, ".kv-present").onclick = () => {
    const html = data.html.replace(/<script>([\s\S]*?)<\/script>/g, (_, code) => {
      return `<script src="${temporaryUrl(code, "text/javascript")}"><\/script>`;
    });
    window.open(temporaryUrl(html, "text/html"), "_blank");
  };
}
function temporaryUrl(text, type) {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  setTimeout(() => URL.revokeObjectURL(url), LIFETIME_MS);
  return url;
}
export {
  addPresentButton as default
};
