/** @import { HeadHistory } from "./history.js" */
/** @import { Vector } from "../types.js" */
import { float16, formatNumber, visibleText } from "../text.js";
import { ABSORBED, EVICTED, UNSEEN } from "./history.js";

const TEXT_LIMIT = 24;

/**
 * A head at a step. Masses are known at one step only.
 * @typedef {object} HeadAtStep
 * @property {HeadHistory} history
 * @property {number} step
 * @property {Uint8Array} states
 * @property {string[]} texts
 * @property {string[]} labels of the states
 * @property {{ step: number, trueMass: Vector, slotMass: Vector } | null} masses
 */

/** @param {string} [text] */
export const shortText = (text) => visibleText(text ?? "", TEXT_LIMIT);

/**
 * What happened to a token: lines of a bold and a plain part, either of which may be empty.
 * @param {HeadAtStep} head
 * @param {number} position
 * @returns {[string, string][]}
 */
export function tokenFacts(head, position) {
  const { history, step, states, texts, labels } = head;
  const state = states[position], owner = history.ownersAt(step)[position], parent = history.parent[position];
  const facts = [];
  if (state === UNSEEN) facts.push(`read at step ${history.birth[position]}`);
  if (state === ABSORBED) {
    facts.push(`went into slot ${parent} “${shortText(texts[parent])}” at step ${history.leave[position]}`);
    if (owner !== parent) facts.push(`now part of slot ${owner} “${shortText(texts[owner])}”`);
  }
  if (state === EVICTED) facts.push(lossFact(history, position));
  if (owner >= 0) facts.push(slotFact(history, step, owner));
  if (state !== UNSEEN) facts.push(massFact(head, position, owner));
  return [
    [`${position} “${shortText(texts[position])}”`, labels[state]],
    ...facts.map((fact) => /** @type {[string, string]} */ (["", fact])),
  ];
}

/**
 * @param {HeadHistory} history
 * @param {number} position
 */
function lossFact({ leave, death, parent }, position) {
  const lostAt = death[position];
  if (lostAt === leave[position]) return `its slot was evicted at step ${lostAt}`;
  return `went into slot ${parent[position]} at step ${leave[position]}, which was evicted with it at step ${lostAt}`;
}

/**
 * @param {HeadHistory} history
 * @param {number} step
 * @param {number} slot
 */
function slotFact(history, step, slot) {
  const votes = history.votesAt(step)[slot];
  if (votes === 1) return "its slot stands for itself alone";
  return `slot ${slot} stands for ${votes} tokens since step ${history.absorb[slot]}`;
}

/**
 * @param {HeadAtStep} head
 * @param {number} position
 * @param {number} owner
 */
function massFact({ masses, step }, position, owner) {
  if (masses?.step !== step) return "";
  const parts = [`true mass ${formatNumber(float16(masses.trueMass[position]))}`];
  if (owner >= 0) parts.push(`its slot receives ${formatNumber(float16(masses.slotMass[owner]))}`);
  return parts.join(", ");
}
