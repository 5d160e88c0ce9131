/**
 * The two positions in ascending order.
 * @param {number} first
 * @param {number} last
 * @returns {[number, number]}
 */
export const ordered = (first, last) => [Math.min(first, last), Math.max(first, last)];

/**
 * The position that an arrow key moves to from a position (null: none yet), or null for any other key.
 * @param {string} key
 * @param {number | null} from
 * @param {number} length
 */
export function arrowTarget(key, from, length) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[key];
  if (!step) return null;
  return Math.min(Math.max((from ?? (step > 0 ? -1 : 0)) + step, 0), length - 1);
}

/**
 * What the user does next.
 * @param {string | null} firstWord of a fact that is being marked
 * @param {number} facts marked so far
 */
export function pickerHint(firstWord, facts) {
  if (firstWord !== null) return `From “${firstWord}”: now click the last word of the fact (Escape: none).`;
  if (!facts) return "Click the first word of a fact, then its last.";
  return `${facts} ${facts === 1 ? "fact is" : "facts are"} marked. Click the first word of another.`;
}
