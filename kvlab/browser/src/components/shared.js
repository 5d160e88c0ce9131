/** @import { Component } from "../types.js" */
import { unpack } from "../payload.js";
import { storeShared } from "../shared-data.js";

/**
 * Receive data that several views of the page share: `value`, or all vectors of the payload.
 * @param {Component<Uint8Array>} component
 */
export default function receiveShared({ data }) {
  const { name, value, ...vectors } = unpack(data);
  storeShared(name, value ?? vectors);
}
