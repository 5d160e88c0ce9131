/* What a live session showed at each step of its replay. */

const SHARES = [0.1, 0.3, 0.6, 0.999]; // upper ends of shares of heads, as on the page Live

/**
 * @typedef {{ kind: string, branch?: number, turn?: number, text?: string, texts?: string[], label?: string,
 *   kl?: number | null, leaves?: boolean, live_bytes?: number, full_bytes?: number, tokens?: number | number[],
 *   tokens_seen?: number,
 *   per_mille?: number[], merged?: number[], reason?: string, message?: string }} SessionEvent
 * @typedef {{ text: string, kl: number | null, leaves: boolean }} Word
 * @typedef {{ words: Word[], reason: string }} Answer
 * @typedef {{ label: string, bytes: number, failure: string, words: Word[], reason: string, held: Float32Array | null,
 *   merged: Float32Array | null, answers: Answer[] }} BranchState `words` and `reason` are those of the question in view
 * @typedef {{ question: string, turn: number, fullBytes: number, seen: number, branches: BranchState[] }} SessionState
 *   `seen`: tokens of the first branch
 */

/**
 * Where each step ends in the list of events: one token of every branch is a step, and so are the compressed context and
 * each question.
 * @param {SessionEvent[]} events
 * @returns {number[]} numbers of events that have happened by the end of each step
 */
export function stepEnds(events) {
  const ends = [];
  const written = new Set();
  events.forEach(({ kind, branch }, index) => {
    const begins = kind.startsWith("question") || (kind === "token" && (written.size === 0 || written.has(branch)));
    if (begins) {
      if (index > 0) ends.push(index);
      written.clear();
    }
    if (kind === "token") written.add(branch);
  });
  ends.push(events.length);
  return ends;
}

/**
 * The session after the first events.
 * @param {SessionEvent[]} events
 * @param {number} count
 * @returns {SessionState}
 */
export function stateAfter(events, count) {
  /** @type {SessionState} */
  const state = { question: "", turn: -1, fullBytes: 0, seen: 0, branches: [] };
  for (const event of events.slice(0, count)) follow(state, event);
  for (const branch of state.branches) Object.assign(branch, branch.answers[state.turn] ?? newAnswer());
  return state;
}

/**
 * @param {SessionState} state
 * @param {SessionEvent} event
 */
function follow(state, event) {
  const branch = event.branch === undefined ? undefined : (state.branches[event.branch] ??= newBranch());
  switch (event.kind) {
    case "context_read":
      state.seen = Number(event.tokens);
      break;
    case "question":
      state.question = event.text ?? "";
      state.turn = event.turn ?? 0;
      for (const one of state.branches) one.answers.length = Math.min(one.answers.length, state.turn);
      break;
    case "question_again": // by one branch, which was changed
      state.question = event.text ?? "";
      state.turn = event.turn ?? 0;
      if (branch) branch.answers[state.turn] = newAnswer();
      break;
    case "went_back":
      Object.assign(state, { question: "", turn: -1 });
      for (const one of state.branches) one.answers = [];
      break;
    default:
      if (branch) followInBranch(state, branch, event);
  }
}

/**
 * @param {SessionState} state
 * @param {BranchState} branch
 * @param {SessionEvent} event
 */
function followInBranch(state, branch, event) {
  switch (event.kind) {
    case "branch_settled":
      Object.assign(branch, { label: event.label, bytes: event.live_bytes, failure: "" });
      state.fullBytes = event.full_bytes ?? 0;
      break;
    case "branch_failed":
      branch.failure = event.message ?? "";
      break;
    case "token":
      answerOf(state, branch).words.push({ text: event.text ?? "", kl: event.kl ?? null, leaves: event.leaves ?? false });
      break;
    case "answer_ended":
      answerOf(state, branch).reason = event.reason ?? "";
      if (event.branch === 0) growFullCache(state, branch, event);
      branch.bytes = event.live_bytes ?? 0;
      break;
    case "held":
      branch.held = Float32Array.from(event.per_mille ?? [], (share) => share / 1000);
      break;
    case "merged":
      branch.merged = Float32Array.from(event.per_mille ?? [], (share) => share / 1000);
      break;
    case "held_changes":
      change(branch.held, /** @type {number[]} */ (event.tokens), event.per_mille ?? []);
      change(branch.merged, /** @type {number[]} */ (event.tokens), event.merged ?? []);
      break;
  }
}

/**
 * The bytes of a full cache of the text so far: the first branch's if it is one, else as many per token as before.
 * @param {SessionState} state
 * @param {BranchState} first
 * @param {SessionEvent} event the end of its answer
 */
function growFullCache(state, first, event) {
  const seen = event.tokens_seen ?? state.seen;
  if (first.bytes === state.fullBytes) state.fullBytes = event.live_bytes ?? 0;
  else if (state.seen > 0) state.fullBytes = Math.round((state.fullBytes * seen) / state.seen);
  state.seen = seen;
}

/**
 * @param {Float32Array | null} known
 * @param {number[]} tokens
 * @param {number[]} shares thousandths
 */
function change(known, tokens, shares) {
  if (known) shares.forEach((share, index) => (known[tokens[index]] = share / 1000));
}

/**
 * The class of a token: 0 in no slot, 1 in others' slots only, from 2 on by the share of heads with a slot of its own.
 * @param {BranchState} branch
 * @param {number} token
 */
export function levelOf({ held, merged }, token) {
  if (!held) return SHARES.length + 2;
  if (held[token] > 0) return 2 + SHARES.filter((end) => held[token] > end).length;
  return merged && merged[token] > 0 ? 1 : 0;
}

/**
 * The branch's answer to the question in view.
 * @param {SessionState} state
 * @param {BranchState} branch
 */
const answerOf = (state, branch) => (branch.answers[state.turn] ??= newAnswer());

/** @returns {Answer} */
const newAnswer = () => ({ words: [], reason: "" });

/** @returns {BranchState} */
const newBranch = () => ({ label: "", bytes: 0, failure: "", held: null, merged: null, answers: [], ...newAnswer() });
