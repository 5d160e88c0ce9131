const GAP_MS = 3000;

/** @type {Record<string, number>} */
const TURNS = { j: 1, "]": 1, k: -1, "[": -1 };

/**
 * Counts heads turned forward less heads turned back, over all lists of keys that a page shows one after the other. The
 * server gets the sum: of several presses during one of its runs it may see the last only.
 */
export class HeadTurns {
  sum = 0;
  reported = 0;
  #acceptUntil = -Infinity;

  /** The list of keys is removed: it may be drawn again, so presses in the next seconds count. */
  pause(now = performance.now()) {
    this.#acceptUntil = now + GAP_MS;
  }

  /** Presses no longer count until a list of keys with heads is shown. */
  end() {
    this.#acceptUntil = -Infinity;
  }

  /**
   * Whether a key turns to another head; if so, it is counted.
   * @param {string} key
   * @param {boolean | undefined} hasHeads of the list of keys that is shown; undefined: none is shown
   */
  press(key, hasHeads, now = performance.now()) {
    const turn = TURNS[key];
    if (!turn || !(hasHeads ?? now < this.#acceptUntil)) return false;
    this.sum += turn;
    return true;
  }
}
