/* Words are clicked: the first of a fact, then its last. Facts are marked in the text and named below it, where each can
   be taken away. The server keeps them; here lies only the first word while the last is not chosen yet. */

class Picker {
  constructor(root) {
    this.root = root.querySelector(".kv-word-picker");
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.cleanups = [];
    this.first = null;
    this.cursor = null;
    const on = (type, handler) => { const node = this.part("text"); node.addEventListener(type, handler); this.cleanups.push(() => node.removeEventListener(type, handler)); };
    on("click", (event) => event.target.dataset?.p !== undefined && this.choose(Number(event.target.dataset.p)));
    on("mouseover", (event) => event.target.dataset?.p !== undefined && this.reach(Number(event.target.dataset.p)));
    on("keydown", (event) => this.key(event));
  }

  dispose() {
    this.blocks?.dispose();
    this.cleanups.forEach((clean) => clean());
  }

  refresh(data) {
    this.data = data;
    const identity = data.texts.join("");
    if (identity !== this.identity) {
      this.identity = identity;
      this.blocks?.dispose();
      this.first = this.cursor = null;
      this.blocks = new Blocks(this.part("text"), data.texts, (span, position) => this.dress(span, position));
    }
    this.redress();
    this.name();
  }

  dress(span, position) {
    const [from, to] = this.first === null ? [0, -1] : [Math.min(this.first, this.over ?? this.first), Math.max(this.first, this.over ?? this.first)];
    span.classList.toggle("fact", this.data.facts.some(([first, last]) => position >= first && position <= last));
    span.classList.toggle("between", position >= from && position <= to);
    span.classList.toggle("first", position === this.first);
    span.classList.toggle("cursor", position === this.cursor);
  }

  redress() {
    this.blocks.spans.forEach((span, position) => this.dress(span, position));
    const many = this.data.facts.length;
    this.part("hint").textContent = this.first !== null
      ? `From “${this.data.texts[this.first].trim()}”: now click the last word of the fact (Escape: none).`
      : many ? `${many} ${many === 1 ? "fact is" : "facts are"} marked. Click the first word of another.` : "Click the first word of a fact, then its last.";
  }

  choose(position) {
    if (this.first === null) { this.first = this.over = position; this.redress(); return; }
    const picked = [Math.min(this.first, position), Math.max(this.first, position)];
    this.first = this.over = null;
    this.redress();
    this.component.setTriggerValue("picked", picked);
  }

  /* While the last word is looked for, the words up to the pointer are lit. */
  reach(position) {
    if (this.first === null || position === this.over) return;
    const [before, after] = [this.over ?? this.first, position];
    this.over = position;
    for (let at = Math.min(before, after, this.first); at <= Math.max(before, after, this.first); at++) this.blocks.spans[at] && this.dress(this.blocks.spans[at], at);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (step) this.move(Math.min(Math.max((this.cursor ?? (step > 0 ? -1 : 0)) + step, 0), this.data.texts.length - 1));
    else if ((event.key === "Enter" || event.key === " ") && this.cursor !== null) this.choose(this.cursor);
    else if (event.key === "Escape" && this.first !== null) { this.first = this.over = null; this.redress(); }
    else return;
    event.preventDefault();
  }

  move(position) {
    const before = this.cursor;
    this.cursor = position;
    if (before !== null) this.dress(this.blocks.at(before), before);
    const span = this.blocks.at(position);
    this.dress(span, position);
    span.scrollIntoView({ block: "nearest" });
    this.reach(position);
  }

  name() {
    this.part("facts").replaceChildren(...this.data.words.map((words, place) => {
      const chip = document.createElement("span"), text = document.createElement("span"), away = document.createElement("button");
      chip.className = "chip";
      text.textContent = words.length > 60 ? words.slice(0, 59) + "…" : words;
      text.title = words;
      text.addEventListener("click", () => this.data.facts[place] && this.blocks.at(this.data.facts[place][0])?.scrollIntoView({ block: "center" }));
      away.textContent = "×";
      away.setAttribute("aria-label", `Take away the fact ${words}`);
      away.addEventListener("click", () => this.component.setTriggerValue("removed", place));
      chip.append(text, away);
      return chip;
    }));
  }
}

export default mounted(Picker);
