import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadTurns } from "../src/head-turns.js";
import { hasModifier, ignoresKeys, isTextInput } from "../src/keyboard.js";
import { clampIndex, nextEventIndex, stepLabel } from "../src/steps.js";

test("indices stay inside the steps", () => {
  assert.deepEqual([-3, 0, 2, 9].map((index) => clampIndex(index, 5)), [0, 0, 2, 4]);
  assert.equal(clampIndex(3, 0), 0);
});

test("the next event is the first one after the step", () => {
  assert.equal(nextEventIndex([0, 2, 4, 6], [2, 6], 0), 1);
  assert.equal(nextEventIndex([0, 2, 4, 6], [2, 6], 2), 3);
  assert.equal(nextEventIndex([0, 2, 4, 6], [2, 6], 6), -1);
});

test("a single step has no number", () => {
  assert.equal(stepLabel([0], 0), "one step");
  assert.equal(stepLabel([0, 4, 8], 4), "step 4 of 8");
});

const element = (tagName, { type, parent = null, testid, isContentEditable = false } = {}) => (
  { tagName, type, isContentEditable, dataset: { testid }, closest: () => parent }
);

test("keys in text fields are text, those on a slider are not", () => {
  assert.ok(isTextInput(element("TEXTAREA")));
  assert.ok(isTextInput(element("INPUT", { type: "text" })));
  assert.ok(isTextInput(element("DIV", { isContentEditable: true })));
  assert.ok(!isTextInput(element("INPUT", { type: "range" })));
  assert.ok(!isTextInput(element("BUTTON")));
});

test("the page and plain buttons ignore keys, tabs and lists do not", () => {
  globalThis.document = { body: element("BODY") };
  assert.ok(ignoresKeys(document.body));
  assert.ok(ignoresKeys(element("SECTION", { testid: "stMain" })));
  assert.ok(ignoresKeys(element("BUTTON")));
  assert.ok(!ignoresKeys(element("BUTTON", { parent: {} })));
  assert.ok(!ignoresKeys(element("INPUT")));
  delete globalThis.document;
});

test("a key with a modifier is the browser's", () => {
  assert.ok(hasModifier({ ctrlKey: true }));
  assert.ok(!hasModifier({ ctrlKey: false, metaKey: false, altKey: false, shiftKey: true }));
});

test("head turns are summed, also shortly after the list of keys is removed", () => {
  const turns = new HeadTurns();
  assert.ok(!turns.press("j", undefined, 0), "no list of keys was shown yet");
  assert.ok(turns.press("j", true, 0) && turns.press("]", true, 0) && turns.press("k", true, 0));
  assert.equal(turns.sum, 1);
  assert.ok(!turns.press("j", false, 0), "a page without heads");
  assert.ok(!turns.press("x", true, 0));
  turns.pause(1000);
  assert.ok(turns.press("j", undefined, 3999) && !turns.press("j", undefined, 4001));
  turns.end();
  assert.ok(!turns.press("j", undefined, 1001));
  assert.equal(turns.sum, 2);
});
