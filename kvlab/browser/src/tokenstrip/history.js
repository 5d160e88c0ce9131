/** @import { Vector } from "../types.js" */

/** The states of a token, as in kvlab/analysis/lineage/states.py. */
export const UNSEEN = 0, SINK = 1, RECENT = 2, KEPT = 3, PIVOT = 4, ABSORBED = 5, EVICTED = 6;
export const STATES = 7;

const SINK_TOKENS = 4, NEVER = 2 ** 31 - 1;

/**
 * The history of one head: per token the step, -1 for never, at which it was read (`birth`), its slot was merged into
 * another or evicted (`leave`), the last slot that held it was evicted (`death`) and its slot first took in another
 * (`absorb`), and the slot it was merged into (`parent`). The rules are those of kvlab/analysis/lineage.
 */
export class HeadHistory {
  #ownersStep = NaN;
  #owners = new Int32Array();
  #votesStep = NaN;
  #votes = new Int32Array();

  /**
   * @param {{ birth: Vector, leave: Vector, death: Vector, absorb: Vector, parent: Vector }} vectors
   * @param {number} tokens
   */
  constructor({ birth, leave, death, absorb, parent }, tokens) {
    this.tokens = tokens;
    this.birth = withoutNever(birth);
    this.leave = withoutNever(leave);
    this.death = withoutNever(death);
    this.absorb = withoutNever(absorb);
    this.parent = parent;
  }

  /**
   * The state of every token at a step.
   * @param {number} step
   */
  statesAt(step) {
    const { birth, leave, death, absorb, tokens } = this;
    let firstGap = -1, lastGap = -1;
    for (let t = 0; t < tokens; t++) {
      if (leave[t] > step) continue;
      if (firstGap < 0) firstGap = t;
      lastGap = t;
    }
    const sinkStop = firstGap < 0 ? 0 : Math.min(firstGap, SINK_TOKENS);
    const recentStart = firstGap < 0 ? tokens : lastGap + 1;
    const states = new Uint8Array(tokens);
    for (let t = 0; t < tokens; t++) {
      if (birth[t] > step) states[t] = UNSEEN;
      else if (death[t] <= step) states[t] = EVICTED;
      else if (leave[t] <= step) states[t] = ABSORBED;
      else if (absorb[t] <= step) states[t] = PIVOT;
      else states[t] = t < sinkStop ? SINK : t >= recentStart ? RECENT : KEPT;
    }
    return states;
  }

  /**
   * Per token the slot that holds it at a step, or -1.
   * @param {number} step
   */
  ownersAt(step) {
    if (this.#ownersStep === step) return this.#owners;
    const owners = new Int32Array(this.tokens);
    for (let t = 0; t < this.tokens; t++) {
      let slot = t;
      while (this.leave[slot] <= step && this.parent[slot] >= 0) slot = this.parent[slot];
      owners[t] = this.birth[t] > step || this.death[t] <= step ? -1 : slot;
    }
    this.#ownersStep = step;
    this.#owners = owners;
    return owners;
  }

  /**
   * Per slot the number of tokens it holds at a step.
   * @param {number} step
   */
  votesAt(step) {
    if (this.#votesStep === step) return this.#votes;
    const votes = new Int32Array(this.tokens);
    for (const owner of this.ownersAt(step)) if (owner >= 0) votes[owner]++;
    this.#votesStep = step;
    this.#votes = votes;
    return votes;
  }
}

/**
 * Steps with a number larger than any step for never. A loop: `Int32Array.from` with a function takes thirty times as long.
 * @param {Vector} vector
 */
function withoutNever(vector) {
  const steps = new Int32Array(vector);
  for (let t = 0; t < steps.length; t++) if (steps[t] === -1) steps[t] = NEVER;
  return steps;
}

/**
 * Positions of the tokens whose slots are in the cache.
 * @param {Uint8Array} states
 */
export function slotsOf(states) {
  const slots = [];
  for (let t = 0; t < states.length; t++) if (states[t] >= SINK && states[t] <= PIVOT) slots.push(t);
  return slots;
}

/**
 * The number of tokens in each state.
 * @param {Uint8Array} states
 */
export function countStates(states) {
  const counts = new Array(STATES).fill(0);
  for (const state of states) counts[state]++;
  return counts;
}
