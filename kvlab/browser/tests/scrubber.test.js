import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import scrubber from "../src/components/scrubber.js";
import { FakeElement, installDocument } from "./fake-dom.js";

const data = { steps: [0, 2, 4, 6], events: [4], texts: ["a", "b", "c", "d"], identity: "run", step: 0, why: "chosen for you" };
let removeDocument, now;

beforeEach(() => {
  removeDocument = installDocument();
  now = 10_000;
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(performance, "now", () => now);
});

afterEach(() => {
  mock.timers.reset();
  mock.restoreAll();
  removeDocument();
});

function wait(milliseconds) {
  now += milliseconds;
  mock.timers.tick(milliseconds);
}

/** A mounted scrubber with what it told the server. */
function start(changes = {}, isEmbedded = false) {
  const parentElement = new FakeElement(), reported = [], state = { ...data, ...changes };
  const refresh = (more = {}) => {
    Object.assign(state, more);
    return scrubber({ parentElement, isEmbedded, data: { ...state }, setStateValue: (_, value) => reported.push(value) });
  };
  const unmount = refresh(), root = parentElement.querySelector(".kv-scrubber"), bar = root.querySelector('[data-part="bar"]');
  const part = (name) => bar.querySelector(`[data-part="${name}"]`);
  const press = (key, path = [root], event = {}) => document.dispatch("keydown", { key, path, ...event });
  return { reported, refresh, unmount, root, part, press, click: (name) => part(name).dispatch("click"), label: () => part("step").textContent };
}

test("the bar shows the step, its text and why it was chosen", () => {
  const { part, label, click } = start();
  assert.equal(label(), "step 0 of 6");
  assert.deepEqual([part("phase").textContent, part("step").title, part("slider").max], ["a", "chosen for you", "3"]);
  click("next");
  assert.deepEqual([label(), part("phase").textContent, part("step").title], ["step 2 of 6", "b", ""]);
});

test("buttons, slider and keys go to steps and stop at the ends", () => {
  const { part, press, click, label } = start();
  for (const [act, shown] of [
    [() => click("last"), 6], [() => click("next"), 6], [() => click("first"), 0], [() => click("back"), 0],
    [() => click("event"), 4], [() => click("event"), 4], [() => press("ArrowLeft"), 2], [() => press("End"), 6],
    [() => press("Home"), 0], [() => press("n"), 4],
  ]) {
    act();
    assert.equal(label(), `step ${shown} of 6`);
  }
  part("slider").value = "1";
  part("slider").dispatch("input");
  assert.equal(label(), "step 2 of 6");
});

test("keys of other elements, keys with a modifier and a space on a button are left alone", () => {
  const { press, root, label } = start(), button = Object.assign(new FakeElement(), { tagName: "BUTTON" });
  const input = Object.assign(new FakeElement(), { tagName: "INPUT" });
  assert.ok(!press("ArrowRight", [input]));
  assert.ok(!press("ArrowRight", [root], { ctrlKey: true }));
  assert.ok(!press(" ", [button]) && !press("x"));
  assert.equal(label(), "step 0 of 6");
  assert.ok(press("ArrowRight", [button]) && press("ArrowRight", [document.body]));
  assert.equal(label(), "step 4 of 6");
});

test("in a notebook only keys typed in the view are meant for it", () => {
  const { press, root, label } = start({}, true), button = Object.assign(new FakeElement(), { tagName: "BUTTON" });
  assert.ok(!press("ArrowRight", [document.body]) && !press("ArrowRight", [button]));
  assert.equal(label(), "step 0 of 6");
  assert.ok(press("ArrowRight", [root]));
  assert.equal(label(), "step 2 of 6");
});

test("a single step is reported at once, of several the last", () => {
  const { click, reported, refresh } = start();
  click("next");
  assert.deepEqual(reported, [2]);
  refresh({ step: 2 });
  wait(500);
  click("next");
  wait(50);
  click("next");
  wait(50);
  click("back");
  assert.deepEqual(reported, [2, 4]);
  wait(200);
  assert.deepEqual(reported, [2, 4, 4]);
});

test("an answer to an earlier step does not move the user back", () => {
  const { click, refresh, label, reported } = start();
  click("next");
  wait(20);
  click("next");
  refresh({ step: 2 });
  assert.equal(label(), "step 4 of 6");
  wait(200);
  assert.deepEqual(reported, [2, 4]);
  refresh({ step: 4 });
  refresh({ step: 0 });
  assert.equal(label(), "step 0 of 6", "a step that the server chose later");
});

test("another run goes to the server's step", () => {
  const { click, refresh, label } = start();
  click("next");
  refresh({ identity: "other", step: 6 });
  assert.equal(label(), "step 6 of 6");
});

test("playing waits for the server's answer to each step, and ends at the last", () => {
  const { click, refresh, reported, part } = start();
  click("play");
  assert.equal(part("play").attributes["aria-label"], "Pause");
  wait(5000);
  assert.deepEqual(reported, [2], "no answer yet");
  for (const step of [2, 4, 6]) {
    refresh({ step });
    wait(400);
  }
  assert.deepEqual(reported, [2, 4, 6]);
  assert.equal(part("play").attributes["aria-label"], "Play");
  click("play");
  assert.deepEqual(reported, [2, 4, 6, 0], "from the start again");
});

test("a single step has no controls", () => {
  const { label, part } = start({ steps: [0], texts: ["a"] });
  assert.equal(label(), "one step");
  assert.ok(part("next").hidden && part("slider").hidden);
});

test("a removed scrubber hears no keys and reports nothing", () => {
  const { press, unmount, click, reported } = start();
  click("next");
  wait(20);
  click("next");
  unmount();
  wait(1000);
  assert.ok(!press("ArrowRight"));
  assert.deepEqual(reported, [2]);
});
