// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/dom.js src/live-replay.js src/replay/player.js src/replay/state.js
// SHA-256 of the sources: 5ab1652024a0a4a57da33ea14df5cbc626df16fe3bc2108a59b3887eff5f6674
// SHA-256 of the code: 57ff30e9d389643b82d5e52f5b65f1352a592e25c4aefbe5fc4f53f9a12a8c89
(() => {
  // src/dom.js
  function find(root, selector) {
    const node = root.querySelector(selector);
    if (!node) throw new Error(`no element matches ${selector}`);
    return (
      /** @type {HTMLElement} */
      node
    );
  }
  function createElement(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== void 0) node.textContent = text;
    return node;
  }

  // src/replay/state.js
  var SHARES = [0.1, 0.3, 0.6, 0.999];
  function stepEnds(events) {
    const ends = [];
    const written = /* @__PURE__ */ new Set();
    events.forEach(({ kind, branch }, index) => {
      const begins = kind.startsWith("question") || kind === "token" && (written.size === 0 || written.has(branch));
      if (begins) {
        if (index > 0) ends.push(index);
        written.clear();
      }
      if (kind === "token") written.add(branch);
    });
    ends.push(events.length);
    return ends;
  }
  function stateAfter(events, count) {
    const state = { question: "", turn: -1, fullBytes: 0, seen: 0, branches: [] };
    for (const event of events.slice(0, count)) follow(state, event);
    for (const branch of state.branches) Object.assign(branch, branch.answers[state.turn] ?? newAnswer());
    return state;
  }
  function follow(state, event) {
    const branch = event.branch === void 0 ? void 0 : state.branches[event.branch] ??= newBranch();
    switch (event.kind) {
      case "context_read":
        state.seen = Number(event.tokens);
        break;
      case "question":
        state.question = event.text ?? "";
        state.turn = event.turn ?? 0;
        for (const one of state.branches) one.answers.length = Math.min(one.answers.length, state.turn);
        break;
      case "question_again":
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
        branch.held = Float32Array.from(event.per_mille ?? [], (share) => share / 1e3);
        break;
      case "merged":
        branch.merged = Float32Array.from(event.per_mille ?? [], (share) => share / 1e3);
        break;
      case "held_changes":
        change(
          branch.held,
          /** @type {number[]} */
          event.tokens,
          event.per_mille ?? []
        );
        change(
          branch.merged,
          /** @type {number[]} */
          event.tokens,
          event.merged ?? []
        );
        break;
    }
  }
  function growFullCache(state, first, event) {
    const seen = event.tokens_seen ?? state.seen;
    if (first.bytes === state.fullBytes) state.fullBytes = event.live_bytes ?? 0;
    else if (state.seen > 0) state.fullBytes = Math.round(state.fullBytes * seen / state.seen);
    state.seen = seen;
  }
  function change(known, tokens, shares) {
    if (known) shares.forEach((share, index) => known[tokens[index]] = share / 1e3);
  }
  function levelOf({ held, merged }, token) {
    if (!held) return SHARES.length + 2;
    if (held[token] > 0) return 2 + SHARES.filter((end) => held[token] > end).length;
    return merged && merged[token] > 0 ? 1 : 0;
  }
  var answerOf = (state, branch) => branch.answers[state.turn] ??= newAnswer();
  var newAnswer = () => ({ words: [], reason: "" });
  var newBranch = () => ({ label: "", bytes: 0, failure: "", held: null, merged: null, answers: [], ...newAnswer() });

  // src/replay/player.js
  var STEP_MS = 90;
  var PAUSE_MS = 900;
  var SHADES = [0.01, 0.1, 1];
  var REASONS = (
    /** @type {Record<string, string>} */
    { length: "cut at the most tokens", stopped: "stopped" }
  );
  var Player = class {
    /**
     * @param {HTMLElement} root
     * @param {{ title: string, events: SessionEvent[], texts: string[] }} session
     */
    constructor(root, { title, events, texts }) {
      this.root = root;
      this.events = events;
      this.ends = stepEnds(events);
      this.step = 0;
      this.branch = 1;
      this.branchCount = 0;
      this.timer = void 0;
      find(root, "h1").textContent = title;
      this.bar = /** @type {HTMLInputElement} */
      find(root, "input");
      this.bar.max = String(this.ends.length - 1);
      this.words = texts.map((text) => createElement("span", "word", text));
      find(root, ".context").append(...this.words);
      this.#listen();
      this.show(this.ends.length - 1);
    }
    #listen() {
      this.bar.addEventListener("input", () => this.#goTo(Number(this.bar.value)));
      find(this.root, ".play").addEventListener("click", () => this.toggle());
      find(this.root, ".full").addEventListener("click", () => this.fullScreen());
      document.addEventListener("keydown", (event) => this.#onKey(event));
    }
    /** @param {KeyboardEvent} event */
    #onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const branch = Number.parseInt(event.key, 10) - 1;
      if (branch >= 0 && branch < this.branchCount) this.focusBranch(branch);
      else if (event.key === " ") this.toggle();
      else if (event.key === "ArrowRight") this.#goTo(this.step + 1);
      else if (event.key === "ArrowLeft") this.#goTo(this.step - 1);
      else if (event.key === "Home") this.#goTo(0);
      else if (event.key === "End") this.#goTo(this.ends.length - 1);
      else if (event.key === "t") this.root.classList.toggle("text-first");
      else if (event.key === "f") this.fullScreen();
      else return;
      event.preventDefault();
    }
    fullScreen() {
      if (document.fullscreenElement) void document.exitFullscreen();
      else void document.documentElement.requestFullscreen();
    }
    /** Play from here, from the beginning after the end, or pause. */
    toggle() {
      if (this.timer !== void 0) {
        this.pause();
        return;
      }
      if (this.step >= this.ends.length - 1) this.show(0);
      this.#playOn();
    }
    pause() {
      clearTimeout(this.timer);
      this.timer = void 0;
      this.#labelButton();
    }
    /** Whether the replay pauses at each step, as at a question. */
    pauses() {
      const last = this.ends.map((end) => this.events[end - 1]?.kind ?? "");
      return last.map((kind) => kind !== "token" && !kind.startsWith("held_"));
    }
    #playOn() {
      const wait = this.pauses()[this.step] ? PAUSE_MS : STEP_MS;
      this.timer = setTimeout(() => {
        this.show(this.step + 1);
        if (this.step < this.ends.length - 1) this.#playOn();
        else this.pause();
      }, wait);
      this.#labelButton();
    }
    /** @param {number} step */
    #goTo(step) {
      this.pause();
      this.show(step);
    }
    #labelButton() {
      const button = find(this.root, ".play");
      button.textContent = this.timer === void 0 ? "Play" : "Pause";
    }
    /** @param {number} branch */
    focusBranch(branch) {
      this.branch = branch;
      this.show(this.step);
    }
    /**
     * Draw a step.
     * @param {number} step
     */
    show(step) {
      this.step = Math.max(0, Math.min(this.ends.length - 1, step));
      const state = stateAfter(this.events, this.ends[this.step]);
      this.branchCount = state.branches.length;
      this.bar.value = String(this.step);
      find(this.root, ".question").textContent = state.question || "The context is compressed. No question yet.";
      find(this.root, ".place").textContent = `step ${this.step} of ${this.ends.length - 1}`;
      find(this.root, ".branches").replaceChildren(...state.branches.map((branch, number) => this.#branchCard(state, branch, number)));
      this.#shadeContext(state.branches[this.branch] ?? state.branches[0]);
    }
    /**
     * @param {SessionState} state
     * @param {BranchState} branch
     * @param {number} number
     */
    #branchCard(state, branch, number) {
      const card = createElement("section", number === this.branch ? "branch focus" : "branch");
      card.addEventListener("click", () => this.focusBranch(number));
      const share = state.fullBytes ? branch.bytes / state.fullBytes : 0;
      const meter = createElement("div", "meter");
      const fill = createElement("div", "fill");
      fill.style.width = `${100 * Math.min(1, share)}%`;
      meter.append(fill);
      const bytes = `${formatBytes(branch.bytes)} · ${(100 * share).toFixed(0)} % of the full cache`;
      const answer = createElement("div", "answer");
      answer.append(...branch.words.map(wordOf));
      if (branch.words.length && !branch.reason) answer.append(createElement("span", "caret", "▍"));
      const note = branch.failure || REASONS[branch.reason] || "";
      card.append(createElement("h2", "", `${number + 1}  ${branch.label}`), meter);
      card.append(createElement("div", "bytes", bytes), answer, createElement("div", "note", note));
      requestAnimationFrame(() => answer.scrollTop = answer.scrollHeight);
      return card;
    }
    /** @param {BranchState | undefined} branch */
    #shadeContext(branch) {
      if (!branch) return;
      const { held } = branch;
      find(this.root, ".whose").textContent = contextTitle(branch);
      this.words.forEach((word, token) => {
        const level = String(levelOf(branch, token));
        if (word.dataset.level !== level) word.dataset.level = level;
        word.title = held ? `a slot of its own in ${(100 * held[token]).toFixed(0)} % of all layers and heads` : "";
      });
    }
  };
  function contextTitle(branch) {
    const { label, held } = branch;
    if (!held) return label;
    const gone = held.filter((_, token) => levelOf(branch, token) === 0).length / Math.max(held.length, 1);
    return `${label}: ${(100 * gone).toFixed(0)} % of the text's tokens are in no slot`;
  }
  function wordOf({ text, kl, leaves }) {
    const span = createElement("span", leaves ? "leaves" : "", text);
    const shade = kl === null ? -1 : SHADES.filter((least) => kl >= least).length - 1;
    if (shade >= 0) span.dataset.kl = String(shade);
    span.title = kl === null ? "" : `KL ${kl.toPrecision(3)} nats`;
    return span;
  }
  function formatBytes(bytes) {
    return bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 10).toFixed(0)} KiB`;
  }

  // src/live-replay.js
  var player = new Player(find(document, "main"), JSON.parse(find(document, "#session").textContent ?? ""));
  Object.assign(globalThis, { player });
})();
