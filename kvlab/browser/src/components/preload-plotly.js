/** @import { Component } from "../types.js" */
import { hideContainer } from "../dom.js";

/**
 * Fetch the scripts of Plotly, which would otherwise be fetched when the first chart arrives.
 * @param {Component<{ scripts: string[] }>} component
 */
export default function preloadPlotly({ parentElement, data }) {
  hideContainer(parentElement);
  for (const script of data.scripts) import(new URL(script, document.baseURI).href).catch(() => {});
}
