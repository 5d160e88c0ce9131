/** @import { Component } from "../types.js" */

const TIMEOUT_MS = 3000, POLL_MS = 40; // no mutation observer: the token strip is in a shadow root

/**
 * Tell the server when the page's first chart or token strip is painted, or after a timeout.
 * @param {Component} component
 */
export default function reportFirstPaint(component) {
  const deadline = performance.now() + TIMEOUT_MS;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
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
