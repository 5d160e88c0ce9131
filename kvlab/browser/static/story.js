// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/story.js src/dom.js
// SHA-256 of the sources: 8e24f3389e4d63a85147c87379ebc0723ebc0e903845bb609ab9d5f96ab5d185
// SHA-256 of the code: fcc8526d42a00ef8d9bdfcbb823c1abde2e7211cdf0c2ae5feb04028962b150d
// src/dom.js
function find(root, selector) {
  const node = root.querySelector(selector);
  if (!node) throw new Error(`no element matches ${selector}`);
  return (
    /** @type {HTMLElement} */
    node
  );
}
var findPart = (root, name) => find(root, `[data-part="${name}"]`);

// src/components/story.js
function showStory({ parentElement, data }) {
  const root = find(parentElement, ".kv-story"), caption = find(root, ".caption");
  find(root, ".where").textContent = data.where;
  caption.textContent = data.caption || "no caption";
  caption.classList.toggle("none", !data.caption);
  setLink(findPart(root, "previous"), data.previous);
  setLink(findPart(root, "next"), data.next);
  const stop = findPart(root, "stop");
  setLink(stop, "#");
  stop.onclick = (event) => {
    event.preventDefault();
    location.assign(withoutParameters(location.href, data.drop));
  };
}
function setLink(link, address) {
  if (address) link.setAttribute("href", address);
  else link.removeAttribute("href");
}
function withoutParameters(address, names) {
  const url = new URL(address);
  for (const name of names) url.searchParams.delete(name);
  return url;
}
export {
  showStory as default
};
