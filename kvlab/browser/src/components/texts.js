/** @import { Component } from "../types.js" */
import { unpack } from "../payload.js";
import { storeTexts } from "../shared-texts.js";

/**
 * Receive the token texts of a run for all views of the page.
 * @param {Component<Uint8Array>} component
 */
export default function receiveTexts({ data }) {
  const { name, texts } = unpack(data);
  storeTexts(name, texts);
}
