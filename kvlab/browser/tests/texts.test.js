import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { mount } from "../src/mount.js";
import { deliverWithShared, storeShared } from "../src/shared-data.js";
import { blockStarts } from "../src/text-blocks.js";
import { cut, formatNumber, shownText, visibleText } from "../src/text.js";
import { storageKeys, storedTheme, storeTheme, themeName } from "../src/theme.js";
import { chosenSpan } from "../src/tokentext.js";
import { arrowTarget, ordered, pickerHint } from "../src/word-span.js";

beforeEach(() => { globalThis.window = {}; });

test("white space is visible in a sentence, and long texts are cut", () => {
  assert.equal(visibleText(" a\tb\r\n", 20), "·a⇥b␍⏎");
  assert.equal(visibleText("", 20), "∅");
  assert.equal(visibleText("abcdef", 4), "abc…");
  assert.equal(cut("abcd", 4), "abcd");
  assert.equal(shownText(" a"), " a");
});

test("numbers have three digits", () => {
  assert.deepEqual([0, 0.12345, 12.345, -0.5, 0.00012].map(formatNumber), ["0", "0.123", "12.3", "-0.5", "1.2e-4"]);
});

test("a text is cut into blocks at line ends, or where a block is too long", () => {
  assert.deepEqual(blockStarts([]), [0]);
  assert.deepEqual(blockStarts(new Array(300).fill("a")), [0]);
  const lines = Array.from({ length: 600 }, (_, position) => (position % 100 === 99 ? "\n" : "a"));
  assert.deepEqual(blockStarts(lines), [0, 300]);
  assert.deepEqual(blockStarts(new Array(5000).fill("a")), [0, 2048, 4096]);
});

test("a click chooses a word, a click with shift all words from the first", () => {
  assert.deepEqual(chosenSpan(null, 4, true), [4, 4]);
  assert.deepEqual(chosenSpan([7, 9], 4, true), [4, 7]);
  assert.deepEqual(chosenSpan([7, 9], 12, true), [7, 12]);
  assert.deepEqual(chosenSpan([7, 9], 12, false), [12, 12]);
});

test("arrow keys move over the words and stop at the ends", () => {
  assert.equal(arrowTarget("ArrowRight", null, 20), 0);
  assert.equal(arrowTarget("ArrowLeft", null, 20), 0);
  assert.equal(arrowTarget("ArrowDown", 15, 20), 19);
  assert.equal(arrowTarget("ArrowUp", 15, 20), 5);
  assert.equal(arrowTarget("x", 15, 20), null);
  assert.deepEqual(ordered(5, 2), [2, 5]);
  assert.match(pickerHint("Ardenne", 1), /From “Ardenne”/);
  assert.match(pickerHint(null, 1), /1 fact is marked/);
  assert.match(pickerHint(null, 2), /2 facts are marked/);
  assert.match(pickerHint(null, 0), /first word of a fact/);
});

/** A mounted view that records what it is given. */
function recorder(deliver) {
  const log = [];
  class View {
    constructor(component) { log.push("created"); this.component = component; }
    refresh(data) { log.push(data); }
    dispose() { log.push("disposed"); }
  }
  return { log, component: mount(View, deliver) };
}

test("a view is created once per parent, refreshed, and disposed of with it", () => {
  const { log, component } = recorder(), parentElement = {};
  component({ parentElement, data: 1 });
  const unmount = component({ parentElement, data: 2 });
  component({ parentElement: {}, data: 3 });
  unmount();
  assert.deepEqual(log, ["created", 1, 2, "created", 3, "disposed"]);
  component({ parentElement, data: 4 });
  assert.deepEqual(log.slice(6), ["created", 4]);
});

/** A payload as app/components.py packs it, without vectors. */
function pack(plain) {
  const header = new TextEncoder().encode(JSON.stringify({ plain, vectors: {} })), bytes = new Uint8Array(4 + header.length);
  new DataView(bytes.buffer).setUint32(0, header.length, true);
  bytes.set(header, 4);
  return bytes;
}

test("a view that names texts is drawn when they arrive, with the newest data", () => {
  const { log, component } = recorder(deliverWithShared), parentElement = {};
  component({ parentElement, data: pack({ step: 1, shared: { texts: "run" } }) });
  component({ parentElement, data: pack({ step: 2, shared: { texts: "run" } }) });
  assert.deepEqual(log, []);
  storeShared("other", ["x"]);
  storeShared("run", ["a", "b"]);
  assert.deepEqual(log, ["created", { step: 2, shared: { texts: "run" }, texts: ["a", "b"] }]);
  component({ parentElement, data: pack({ step: 3, shared: { texts: "run" } }) });
  component({ parentElement, data: pack({ step: 4, texts: ["own"] }) });
  assert.deepEqual(log.slice(2).map(({ step, texts }) => [step, texts]), [[3, ["a", "b"]], [4, ["own"]]]);
});

test("a view that is unmounted while it waits is not drawn, and the oldest texts are dropped", () => {
  const { log, component } = recorder(deliverWithShared);
  component({ parentElement: {}, data: pack({ shared: { texts: "late" } }) })();
  for (const name of ["late", "b", "c", "d", "e", "f", "g"]) storeShared(name, [name]);
  assert.deepEqual(log, []);
  assert.deepEqual([...window.kvlabShared.values.keys()], ["b", "c", "d", "e", "f", "g"]);
});

test("a theme is stored for every page, and read from the current one first", () => {
  const keys = storageKeys(["", "timeline", "atlas"], "/lab/timeline");
  assert.equal(keys[0], "stActiveTheme-/lab/timeline-v2");
  assert.deepEqual(new Set(keys).size, 3);
  const values = new Map();
  globalThis.localStorage = { getItem: (key) => values.get(key) ?? null, setItem: (key, value) => values.set(key, value) };
  assert.equal(storedTheme(keys), null);
  storeTheme(keys, "Dark");
  assert.equal(values.get("stActiveTheme-/lab/atlas-v2"), '"Dark"');
  values.set(keys[0], '"Light"');
  assert.equal(storedTheme(keys), "Light");
  values.set(keys[0], "{");
  assert.equal(storedTheme(keys), null);
  delete globalThis.localStorage;
  assert.equal(storedTheme(keys), null);
  storeTheme(keys, "Dark");
});

test("Streamlit's themes have one of three names", () => {
  assert.equal(themeName({ name: "Custom Theme Dark" }), "Dark");
  assert.equal(themeName({ name: "Custom Theme Auto" }), "System");
  assert.equal(themeName({ name: "x", displayName: "System" }), "System");
  assert.equal(themeName({ name: "Custom Theme Light" }), "Light");
});
