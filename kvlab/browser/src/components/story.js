/** @import { Component } from "../types.js" */
import { find, findPart } from "../dom.js";

/**
 * @typedef {object} Data
 * @property {string} where
 * @property {string} caption
 * @property {string | null} previous
 * @property {string | null} next
 * @property {string[]} drop query parameters of the telling
 */

/**
 * While a story is told: the place in it, the caption of the view and links to its neighbours.
 * @param {Component<Data>} component
 */
export default function showStory({ parentElement, data }) {
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

/**
 * @param {HTMLElement} link
 * @param {string | null} address
 */
function setLink(link, address) {
  if (address) link.setAttribute("href", address);
  else link.removeAttribute("href");
}

/**
 * @param {string} address
 * @param {string[]} names
 */
function withoutParameters(address, names) {
  const url = new URL(address);
  for (const name of names) url.searchParams.delete(name);
  return url;
}
