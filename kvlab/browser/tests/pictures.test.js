import assert from "node:assert/strict";
import { test } from "node:test";
import { pixelOf, rgb } from "../src/canvas.js";
import { axisTicks, blockAt, blockName, colourLevel, colourTable, wholeTokens, windowAt, zoomed } from "../src/tilemap/geometry.js";
import { gridLayout } from "../src/tokenstrip/slot-grid.js";
import { columnCodes } from "../src/tokentext.js";

const bytesOf = (word) => [...new Uint8Array(Uint32Array.of(word).buffer)];

test("colours become opaque pixels", () => {
  assert.deepEqual(rgb("#10a0ff"), [16, 160, 255]);
  assert.deepEqual(bytesOf(pixelOf("#10a0ff")), [16, 160, 255, 255]);
});

test("the colour table goes from the first stop over the middle to the last", () => {
  const table = colourTable(["#000000", "#ffffff", "#ff0000"]);
  assert.equal(table.length, 257);
  assert.deepEqual(bytesOf(table[colourLevel(-32767)]), [0, 0, 0, 255]);
  assert.deepEqual(bytesOf(table[colourLevel(0)]), [255, 255, 255, 255]);
  assert.deepEqual(bytesOf(table[colourLevel(32767)]), [255, 0, 0, 255]);
});

test("ticks are round and inside the axis", () => {
  assert.deepEqual(axisTicks(0, 96), [0, 20, 40, 60, 80]);
  assert.deepEqual(axisTicks(3, 9), [3, 4, 5, 6, 7, 8]);
  assert.deepEqual(axisTicks(0, 131072), [0, 50_000, 100_000]);
});

test("a position is in the block whose edge is at or before it", () => {
  const edges = [0, 10, 11, 40];
  assert.deepEqual([0, 9.9, 10, 11, 39].map((position) => blockAt(edges, position)), [0, 0, 1, 2, 2]);
  assert.equal(blockName(edges, ["abc", "d", "e"], 0), "tokens 0 to 9 “abc”");
  assert.equal(blockName(edges, ["abc", "d", "e"], 1), "token 10 “d”");
});

test("windows stay square and inside the text", () => {
  assert.deepEqual(windowAt(-5, 90, 20, 100), [0, 20, 80, 100]);
  assert.deepEqual(zoomed([0, 100, 0, 100], 0.5, 0.5, 0.5, 100), [25, 75, 25, 75]);
  assert.deepEqual(zoomed([25, 75, 25, 75], 4, 0.5, 0.5, 100), [0, 100, 0, 100]);
  assert.deepEqual(zoomed([0, 10, 0, 10], 0.01, 0, 1, 100), [2, 10, 0, 8]);
  assert.deepEqual(zoomed([0, 4, 0, 4], 0.5, 0.5, 0.5, 4), [0, 4, 0, 4]);
  assert.deepEqual(wholeTokens([0.4, 20.4, 79.6, 99.6], 100), [0, 20, 80, 100]);
  assert.deepEqual(wholeTokens([0.4, 20.6, 79.4, 99.6], 100), [0, 21, 79, 100]);
});

test("the cells of a grid are as large as its height allows", () => {
  assert.deepEqual(gridLayout(10, 220), { size: 22, side: 20, across: 10, height: 22 });
  const many = gridLayout(5000, 300);
  assert.ok(many.height <= 400 && Math.ceil(5000 / many.across) * many.size === many.height);
  assert.equal(gridLayout(200_000, 300).size, 3);
  assert.equal(gridLayout(0, 100).height, 22);
});

test("a column of the strip has the class of most of its tokens", () => {
  assert.deepEqual(columnCodes(Uint8Array.of(0, 1, 1, 2, 2, 2), 2), [1, 2]);
  assert.deepEqual(columnCodes([3, 4], 2), [3, 4]);
});
