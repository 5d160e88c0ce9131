/**
 * An index inside a list of `length` items.
 * @param {number} index
 * @param {number} length
 */
export const clampIndex = (index, length) => Math.max(0, Math.min(length - 1, index));

/**
 * The index of the first step with an event after `step`, or -1.
 * @param {number[]} steps
 * @param {number[]} events
 * @param {number} step
 */
export function nextEventIndex(steps, events, step) {
  const next = events.find((event) => event > step);
  return next === undefined ? -1 : steps.indexOf(next);
}

/**
 * The text of a step bar at `step`.
 * @param {number[]} steps
 * @param {number} step
 */
export const stepLabel = (steps, step) => (steps.length < 2 ? "one step" : `step ${step} of ${steps[steps.length - 1]}`);
