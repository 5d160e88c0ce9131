// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/copy-link.js src/dom.js
// SHA-256 of the sources: 44fabf3fc8adcc30d46746e2afb76eb9349949dac3f832c34b5776e4fcde53fb
// SHA-256 of the code: 2ea066ab995b23ae9c448c9b3bde0f89e2d9ab5abf080b6046c03e0cee561dea
// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}

// src/components/copy-link.js
var CONFIRMATION_MS = 1600;
function addCopyButton({ parentElement }) {
  const button = find(parentElement, ".kv-copy");
  button.onclick = async () => {
    button.textContent = await copy(location.href) ? "Copied" : "Copy it from the address bar";
    setTimeout(() => {
      button.textContent = "Copy link";
    }, CONFIRMATION_MS);
  };
}
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}
export {
  addCopyButton as default
};
