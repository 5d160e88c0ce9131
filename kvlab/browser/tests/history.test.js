import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ABSORBED, countStates, EVICTED, HeadHistory, slotsOf } from "../src/tokenstrip/history.js";
import { tokenFacts } from "../src/tokenstrip/token-facts.js";

const { head } = JSON.parse(readFileSync(new URL("fixtures.json", import.meta.url), "utf8"));
const tokens = head.birth.length;
const history = new HeadHistory(head, tokens);
const labels = ["unseen", "sink", "recent", "kept", "pivot", "absorbed", "evicted"];
const texts = Array.from({ length: tokens }, (_, position) => (position === 5 ? " a\n" : `w${position}`));

function facts(step, position, masses = null) {
  return tokenFacts({ history, step, states: history.statesAt(step), texts, labels, masses }, position);
}

test("states, owners and votes of every step are those of Python", () => {
  head.steps.forEach((step, at) => {
    assert.deepEqual([...history.statesAt(step)], head.states[at]);
    assert.deepEqual([...history.ownersAt(step)], head.owners[at]);
    assert.deepEqual([...history.votesAt(step)], head.votes[at]);
  });
});

test("slots are the tokens still in the cache, and every token has one state", () => {
  const states = history.statesAt(1), counts = countStates(states);
  assert.equal(counts.reduce((sum, count) => sum + count), tokens);
  assert.ok(slotsOf(states).every((slot) => history.ownersAt(1)[slot] === slot));
  assert.equal(slotsOf(states).length, new Set(history.ownersAt(1).filter((owner) => owner >= 0)).size);
  assert.equal(counts[ABSORBED] + counts[EVICTED], 2);
});

test("the facts of a token tell where it went", () => {
  assert.deepEqual(facts(0, 0)[1], ["", "its slot stands for itself alone"]);
  assert.deepEqual(facts(0, 9), [["9 “w9”", "unseen"], ["", "read at step 3"]]);
  assert.deepEqual(facts(2, 2).slice(0, 4), [
    ["2 “w2”", "absorbed"],
    ["", "went into slot 1 “w1” at step 0"],
    ["", "now part of slot 5 “·a⏎”"],
    ["", "slot 5 stands for 3 tokens since step 2"],
  ]);
  assert.deepEqual(facts(3, 4)[1], ["", "its slot was evicted at step 1"]);
  assert.deepEqual(facts(3, 2)[1], ["", "went into slot 1 at step 0, which was evicted with it at step 3"]);
});

test("masses are shown at the step they belong to", () => {
  const half = 0x3800, masses = { step: 1, trueMass: new Array(tokens).fill(half), slotMass: new Array(tokens).fill(half / 2) };
  assert.equal(facts(1, 0, masses).at(-1)[1], "true mass 0.5, its slot receives 0.00391");
  assert.equal(facts(0, 0, masses).at(-1)[1], "");
});
