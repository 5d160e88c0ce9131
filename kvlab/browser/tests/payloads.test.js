import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { unpack } from "../src/payload.js";
import { float16 } from "../src/text.js";
import { decodeValues } from "../src/tilemap/geometry.js";

const { payload, tile } = JSON.parse(readFileSync(new URL("fixtures.json", import.meta.url), "utf8"));

test("what Python packed is read back", () => {
  const data = unpack(new Uint8Array(Buffer.from(payload.bytes, "base64")));
  assert.deepEqual(Object.keys(data).sort(), Object.keys(payload.data).sort());
  for (const [name, value] of Object.entries(payload.data)) {
    assert.deepEqual(ArrayBuffer.isView(data[name]) ? [...data[name]] : data[name], value, name);
  }
  assert.ok(data.codes instanceof Uint8Array && data.parent instanceof Int32Array && data.score instanceof Float32Array);
  assert.deepEqual([...data.mass].map(float16), [0.5, 0.25, 2 ** -24]);
});

test("bytes inside a larger buffer are read, and the same bytes give the same object", () => {
  const bytes = Buffer.from(payload.bytes, "base64"), buffer = new Uint8Array(bytes.length + 7);
  buffer.set(bytes, 7);
  const inside = buffer.subarray(7), data = unpack(inside);
  assert.equal(data.step, 3);
  assert.deepEqual([...data.leave], payload.data.leave);
  assert.equal(unpack(inside), data);
});

test("a tile's values are the 16-bit integers of Python", () => {
  assert.deepEqual([...decodeValues(tile.bytes)], tile.values);
});
