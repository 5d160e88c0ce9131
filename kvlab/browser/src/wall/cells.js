/* Codes of all cells of a wall at a step. A cell is head * tokens + position; its code is a fate as in
   kvlab/analysis/lineage/wall.py, or UNSEEN before its token is read. */

export const KEPT = 0, HOLDS = 1, ABSORBED = 2, DROPPED = 3, UNSEEN = 4;
export const BOTH = 0, ONLY_A = 1, ONLY_B = 2, NEITHER = 3;
export const CODES = 5;

/**
 * The data of a wall: `wall_vectors` of kvlab/views/wall.py.
 * @typedef {object} WallData
 * @property {Uint8Array} first fates when tokens are read, four to a byte, lowest bits first
 * @property {Uint32Array} readBy number of tokens read by each step
 * @property {Uint32Array} changesBy number of changes by each step
 * @property {Uint32Array} changeCells
 * @property {Uint8Array} changeFates
 */

/** @typedef {(cell: number) => void} OnChange */

/** Fates of one run, moved from step to step by applying or undoing changes. */
export class RunCells {
  index = -1; // nothing is read

  /**
   * @param {WallData} data
   * @param {number} heads of all layers
   */
  constructor(data, heads) {
    this.data = data;
    this.heads = heads;
    this.tokens = data.readBy[data.readBy.length - 1];
    this.first = unpackFates(data.first, heads * this.tokens);
    this.codes = new Uint8Array(heads * this.tokens).fill(UNSEEN);
    this.before = new Uint8Array(data.changeFates.length); // codes that the changes replaced, for undoing them
    this.totals = new Array(CODES).fill(0); // cells of each code
    this.totals[UNSEEN] = this.codes.length;
  }

  /**
   * Move to the step at `index`; `onChange` is called for every cell that changes.
   * @param {number} index
   * @param {OnChange} [onChange]
   */
  go(index, onChange) {
    while (this.index < index) this.forward(onChange);
    while (this.index > index) this.back(onChange);
  }

  /** @param {OnChange} [onChange] */
  forward(onChange) {
    const { codes, first, before, tokens, data: { readBy, changesBy, changeCells, changeFates } } = this;
    const index = ++this.index, from = readBy[index - 1] ?? 0, to = readBy[index];
    for (let head = 0; head < this.heads; head++) {
      const start = head * tokens;
      codes.set(first.subarray(start + from, start + to), start + from);
    }
    this.countRead(from, to, 1);
    if (onChange) this.announce(from, to, onChange);
    for (let change = changesBy[index - 1] ?? 0; change < changesBy[index]; change++) {
      const cell = changeCells[change];
      before[change] = codes[cell];
      this.set(cell, changeFates[change]);
      onChange?.(cell);
    }
  }

  /** @param {OnChange} [onChange] */
  back(onChange) {
    const { before, tokens, index, data: { readBy, changesBy, changeCells } } = this;
    const from = readBy[index - 1] ?? 0, to = readBy[index];
    for (let change = changesBy[index] - 1; change >= (changesBy[index - 1] ?? 0); change--) {
      this.set(changeCells[change], before[change]);
      onChange?.(changeCells[change]);
    }
    this.countRead(from, to, -1);
    for (let head = 0; head < this.heads; head++) this.codes.fill(UNSEEN, head * tokens + from, head * tokens + to);
    if (onChange) this.announce(from, to, onChange);
    this.index--;
  }

  /**
   * @param {number} cell
   * @param {number} code
   */
  set(cell, code) {
    this.totals[this.codes[cell]]--;
    this.totals[code]++;
    this.codes[cell] = code;
  }

  /**
   * Count tokens as read (`sign` 1) or as unread again (-1).
   * @param {number} from
   * @param {number} to
   * @param {number} sign
   */
  countRead(from, to, sign) {
    const { codes, tokens, totals } = this;
    for (let head = 0; head < this.heads; head++) {
      for (let cell = head * tokens + from; cell < head * tokens + to; cell++) totals[codes[cell]] += sign;
    }
    totals[UNSEEN] -= sign * this.heads * (to - from);
  }

  /**
   * @param {number} from
   * @param {number} to
   * @param {OnChange} onChange
   */
  announce(from, to, onChange) {
    for (let head = 0; head < this.heads; head++) {
      for (let position = from; position < to; position++) onChange(head * this.tokens + position);
    }
  }
}

/** What two runs over the same text hold: tokens with a slot of their own in both, in one, or in neither. */
export class DifferenceCells {
  /**
   * @param {RunCells} a
   * @param {RunCells} b
   */
  constructor(a, b) {
    this.a = a;
    this.b = b;
    this.heads = a.heads;
    this.tokens = a.tokens;
    this.codes = new Uint8Array(a.codes.length);
    this.totals = new Array(CODES).fill(0);
    this.totals[0] = this.codes.length;
    for (let cell = 0; cell < this.codes.length; cell++) this.update(cell);
  }

  get index() {
    return this.a.index;
  }

  /**
   * @param {number} index
   * @param {OnChange} [onChange]
   */
  go(index, onChange) {
    const update = (/** @type {number} */ cell) => {
      this.update(cell);
      onChange?.(cell);
    };
    this.a.go(index, update);
    this.b.go(index, update);
  }

  /** @param {number} cell */
  update(cell) {
    const a = this.a.codes[cell], b = this.b.codes[cell];
    const code = a === UNSEEN || b === UNSEEN ? UNSEEN : (a > HOLDS ? ONLY_B : 0) + (b > HOLDS ? ONLY_A : 0);
    this.totals[this.codes[cell]]--;
    this.totals[code]++;
    this.codes[cell] = code;
  }
}

/**
 * The change that gave a cell its fate by the step at `index`: the index of its step, or -1 if it had it when read.
 * @param {WallData} data
 * @param {number} cell
 * @param {number} index
 */
export function changedAt({ changesBy, changeCells }, cell, index) {
  for (let at = index; at >= 0; at--) {
    for (let change = changesBy[at] - 1; change >= (changesBy[at - 1] ?? 0); change--) if (changeCells[change] === cell) return at;
  }
  return -1;
}

/**
 * @param {Uint8Array} packed
 * @param {number} count
 */
export function unpackFates(packed, count) {
  const fates = new Uint8Array(count);
  for (let cell = 0; cell < count; cell++) fates[cell] = (packed[cell >> 2] >> (2 * (cell & 3))) & 3;
  return fates;
}

/**
 * Number of cells of each code in some heads.
 * @param {{ codes: Uint8Array, tokens: number }} cells
 * @param {Iterable<number>} heads
 */
export function countCodes({ codes, tokens }, heads) {
  const counts = new Array(CODES).fill(0);
  for (const head of heads) {
    for (let cell = head * tokens; cell < (head + 1) * tokens; cell++) counts[codes[cell]]++;
  }
  return counts;
}
