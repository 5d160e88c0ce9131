/** @import { Component } from "../types.js" */
import { find } from "../dom.js";

const CONFIRMATION_MS = 1600;

/**
 * A button that copies the page's address.
 * @param {Component} component
 */
export default function addCopyButton({ parentElement }) {
  const button = find(parentElement, ".kv-copy");
  button.onclick = async () => {
    button.textContent = (await copy(location.href)) ? "Copied" : "Copy it from the address bar";
    setTimeout(() => { button.textContent = "Copy link"; }, CONFIRMATION_MS);
  };
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // pages without HTTPS have no clipboard
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}
