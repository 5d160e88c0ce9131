import assert from "node:assert/strict";
import { test } from "node:test";
import { levelOf, stateAfter, stepEnds } from "../src/replay/state.js";

const token = (branch, text, more = {}) => ({ kind: "token", turn: 0, branch, text, kl: null, leaves: false, ...more });
const EVENTS = [
  { kind: "branch_settled", branch: 0, label: "full 100 %", live_bytes: 1000, full_bytes: 1000 },
  { kind: "branch_settled", branch: 1, label: "h2o 20 %", live_bytes: 200, full_bytes: 1000 },
  { kind: "held", branch: 1, per_mille: [1000, 250, 0] },
  { kind: "question", turn: 0, text: "Who?" },
  token(0, "The"),
  token(1, "The", { kl: 0.2 }),
  token(0, " cat"),
  token(1, " dog", { kl: 1.5, leaves: true }),
  { kind: "held_changes", branch: 1, tokens: [1], per_mille: [0] },
  token(1, "s"),
  { kind: "answer_ended", branch: 1, turn: 0, reason: "length", live_bytes: 210 },
  { kind: "question", turn: 1, text: "Why?" },
  token(0, "So"),
];

test("a step is one token of every branch, the compressed context, or a question", () => {
  assert.deepEqual(stepEnds(EVENTS), [3, 4, 6, 9, 11, 12, 13]);
});

test("the state at a step is what the events up to it tell", () => {
  const ends = stepEnds(EVENTS);
  const start = stateAfter(EVENTS, ends[0]);
  assert.deepEqual([start.question, start.branches[1].label, start.branches[1].bytes], ["", "h2o 20 %", 200]);
  assert.deepEqual([...start.branches[1].held], [1, 0.25, 0]);
  const later = stateAfter(EVENTS, ends[3]);
  assert.equal(later.branches[1].words.map(({ text }) => text).join(""), "The dog");
  assert.deepEqual(later.branches[1].words.map(({ leaves }) => leaves), [false, true]);
  assert.deepEqual([...later.branches[1].held], [1, 0, 0]);
  assert.deepEqual([...start.branches[1].held], [1, 0.25, 0], "earlier states stay as they were");
  const ended = stateAfter(EVENTS, ends[4]).branches[1];
  assert.deepEqual([ended.reason, ended.bytes], ["length", 210]);
  const next = stateAfter(EVENTS, ends[6]);
  assert.deepEqual([next.question, next.branches[0].words.length, next.branches[1].words.length], ["Why?", 1, 0]);
});

test("a conversation that begins again has no question and no words", () => {
  const state = stateAfter([...EVENTS, { kind: "went_back", turn: 0 }], EVENTS.length + 1);
  assert.deepEqual([state.question, state.branches[0].words.length, state.branches[1].bytes], ["", 0, 210]);
});

test("a branch that was changed answers again beside the answers of the others", () => {
  const again = [
    { kind: "branch_settled", branch: 1, label: "h2o 10 %", live_bytes: 100, full_bytes: 1000 },
    { kind: "question_again", branch: 1, turn: 0, text: "Who?" },
    token(1, "A"),
    { kind: "question_again", branch: 1, turn: 1, text: "Why?" },
  ];
  const words = (count) => {
    const { question, branches } = stateAfter([...EVENTS, ...again], EVENTS.length + count);
    return [question, ...branches.map((branch) => branch.words.map(({ text }) => text).join(""))];
  };
  assert.deepEqual(words(0), ["Why?", "So", ""]);
  assert.deepEqual(words(3), ["Who?", "The cat", "A"]);
  assert.deepEqual(words(4), ["Why?", "So", ""]);
  assert.deepEqual(stepEnds([...EVENTS, ...again]).slice(-4), [EVENTS.length + 1, EVENTS.length + 2, EVENTS.length + 3, EVENTS.length + 4]);
});

test("a merged token differs from a dropped one, until the slot it is in leaves", () => {
  const events = [
    ...EVENTS.slice(0, 3),
    { kind: "merged", branch: 1, per_mille: [0, 0, 500], into: [-1, -1, 0] },
    { kind: "held_changes", branch: 1, tokens: [1, 2], per_mille: [0, 0], merged: [0, 250] },
    { kind: "held_changes", branch: 1, tokens: [2], per_mille: [0], merged: [0] },
  ];
  const levels = (count) => [0, 1, 2].map((place) => levelOf(stateAfter(events, count).branches[1], place));
  assert.deepEqual(levels(3), [6, 3, 0]);
  assert.deepEqual(levels(4), [6, 3, 1]);
  assert.deepEqual(levels(5), [6, 0, 1]);
  assert.deepEqual(levels(6), [6, 0, 0]);
});

test("a full cache that no branch holds grows with the text", () => {
  const told = (reference, label) => [
    { kind: "context_read", tokens: 10 },
    { kind: "branch_settled", branch: 0, label, live_bytes: reference, full_bytes: 1000 },
    { kind: "branch_settled", branch: 1, label: "h2o 20 %", live_bytes: 200, full_bytes: 1000 },
    { kind: "answer_ended", branch: 0, turn: 0, reason: "end", live_bytes: reference + 50, tokens_seen: 15 },
    { kind: "answer_ended", branch: 0, turn: 1, reason: "end", live_bytes: reference + 100, tokens_seen: 20 },
  ];
  const full = (events, count) => stateAfter(events, count).fullBytes;
  const kept = told(300, "h2o 30 %");
  assert.deepEqual([full(kept, 3), full(kept, 4), full(kept, 5)], [1000, 1500, 2000]);
  const whole = told(1000, "full 100 %");
  assert.deepEqual([full(whole, 4), full(whole, 5)], [1050, 1100]);
});
