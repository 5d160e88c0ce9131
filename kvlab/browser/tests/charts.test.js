import assert from "node:assert/strict";
import { test } from "node:test";
import { fadeOtherLines } from "../src/line-focus.js";
import { axisValue, clickTarget, tokenPosition, watchPage } from "../src/plotly-charts.js";

test("a point of a chart is at a token position", () => {
  assert.equal(tokenPosition({ axis: "x", offset: 0 }, { x: 4.4, y: 9 }), 4);
  assert.equal(tokenPosition({ axis: "y", offset: 63 }, { x: 4, y: 2 }), 65);
  assert.equal(tokenPosition({ axis: "x", offset: 0 }, { x: "12 “word”" }), 12);
  assert.equal(tokenPosition({ axis: "x", offset: 0 }, { x: "word" }), null);
  assert.equal(tokenPosition({ axis: "x", offset: 0 }, undefined), null);
});

test("on an axis of categories a position is in the last block at or before it", () => {
  const axis = { type: "category", _categories: ["0 “a”", "8 “b”", "16 “c”"] };
  assert.equal(axisValue(axis, 8), "8 “b”");
  assert.equal(axisValue(axis, 15), "8 “b”");
  assert.equal(axisValue(axis, 99), "16 “c”");
  assert.equal(axisValue({ type: "linear", _categories: [] }, 15), 15);
});

test("a click on a cell names what the axes and the cell select", () => {
  assert.deepEqual(clickTarget({ go: { x: "head", y: "layer" } }, { x: 3, y: "layer 2" }), { head: 3, layer: 2 });
  assert.deepEqual(clickTarget({ go: { x: "head" }, ranks: { x: [7, 5] } }, { x: 1 }), { head: 5 });
  assert.deepEqual(clickTarget({ go: { x: "head" }, ranks: { x: [7, 5] } }, { x: 9 }), {});
  assert.deepEqual(clickTarget({ go: { x: "step" } }, { x: "none", customdata: { go: { token: 4 } } }), { token: 4 });
  assert.deepEqual(clickTarget(undefined, undefined), {});
});

test("many changes of the page are one call, and none after the end", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let change, isObserving = false, calls = 0;
  globalThis.document = { body: {} };
  globalThis.MutationObserver = class {
    constructor(callback) { change = callback; }
    observe() { isObserving = true; }
    disconnect() { isObserving = false; }
  };
  const stop = watchPage(() => calls++);
  assert.ok(isObserving && calls === 1);
  change();
  change();
  context.mock.timers.tick(1000);
  assert.equal(calls, 2);
  change();
  stop();
  context.mock.timers.tick(1000);
  assert.ok(!isObserving && calls === 2);
  delete globalThis.document;
  delete globalThis.MutationObserver;
});

test("the line under the pointer and its name stay, all others fade until it leaves", () => {
  const node = (index) => ({ style: { opacity: "" }, dataset: { index: String(index) } });
  const lines = { a: node(0), b: node(1), c: node(2) }, labels = [node(0), node(1)];
  const chart = {
    layout: { meta: { lines: ["h2o", "keepkv"] } },
    // The last trace is in another panel and has the name of the first.
    _fullData: [{ uid: "a", name: "h2o" }, { uid: "b", name: "keepkv" }, { uid: "c", name: "h2o" }],
    querySelector: (selector) => lines[selector.at(-1)] ?? null,
    querySelectorAll: () => labels,
  };
  const opacities = () => [...Object.values(lines), ...labels].map((each) => each.style.opacity);
  fadeOtherLines(chart, 0);
  assert.deepEqual(opacities(), ["", "0.2", "", "", "0.2"]);
  fadeOtherLines(chart, 1);
  assert.deepEqual(opacities(), ["0.2", "", "0.2", "0.2", ""]);
  fadeOtherLines(chart);
  assert.deepEqual(opacities(), ["", "", "", "", ""]);
});
