/** @import { Component } from "../types.js" */
import { find } from "../dom.js";

const LIFETIME_MS = 60000;

/**
 * Open a talk, one HTML page, in a new tab. The tab has the dashboard's content security policy, which forbids inline
 * scripts: each becomes a file of its own.
 * @param {Component<{ html: string }>} component
 */
export default function addPresentButton({ parentElement, data }) {
  find(parentElement, ".kv-present").onclick = () => {
    const html = data.html.replace(/<script>([\s\S]*?)<\/script>/g, (_, code) => {
      return `<script src="${temporaryUrl(code, "text/javascript")}"></script>`;
    });
    window.open(temporaryUrl(html, "text/html"), "_blank");
  };
}

/**
 * @param {string} text
 * @param {string} type
 */
function temporaryUrl(text, type) {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  setTimeout(() => URL.revokeObjectURL(url), LIFETIME_MS);
  return url;
}
