/* The text, what is said of a word, and which words are lit. All text is set as text, never as HTML. */

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/* White space as in the figures; the panel itself shows the text as it stands. */
function visible(text, limit = 24) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍") || "∅";
  return shown.length > limit ? shown.slice(0, limit - 1) + "…" : shown;
}

function number(value) {
  if (value === 0) return "0";
  return Math.abs(value) >= 1e-3 ? Number(value.toPrecision(3)).toString() : value.toExponential(1);
}

/* The number that these 16 bits are in half precision; masses are recorded so. */
function half(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

class Words extends Pictures {
  hasText(texts) { return this.texts === texts || this.texts?.length === texts.length && this.texts.every((text, position) => text === texts[position]); }

  buildText(texts) {
    this.texts = texts;
    this.tokens = texts.length;
    this.states = new Uint8Array(this.tokens).fill(255);
    this.blocks?.dispose();
    this.blocks = new Blocks(this.part("text"), this.texts, (span, position) => this.dress(span, position));
    this.spans = this.blocks.spans;
  }

  dress(span, position) {
    const lit = this.lit.includes(position), pivot = lit && position === this.litSlot;
    span.className = `t s${this.states[position]}${lit ? " lit" : ""}${pivot ? " pivot" : ""}`;
  }

  scrollTo(position) {
    const panel = this.part("text"), span = this.blocks.at(position);
    panel.scrollTo({ top: span.offsetTop - panel.clientHeight / 2, behavior: "smooth" });
  }

  legend(counts) {
    const box = this.part("legend");
    box.replaceChildren();
    this.data.labels.forEach((label, state) => {
      if (!counts[state]) return;
      const chip = element("span", "chip");
      chip.append(element("span", `swatch s${state}`, "a"), element("span", "", `${label} ${counts[state].toLocaleString("en")}`));
      chip.title = this.data.meanings[state];
      box.append(chip);
    });
  }

  tellFate(position) {
    const state = this.states[position], owner = this.owners()[position], lines = [];
    lines.push([`${position} “${visible(this.texts[position])}”`, this.data.labels[state]]);
    if (state === UNSEEN) lines.push(["", `read at step ${this.birth[position]}`]);
    if (state === ABSORBED) {
      lines.push(["", `went into slot ${this.parent[position]} “${visible(this.texts[this.parent[position]])}” at step ${this.leave[position]}`]);
      if (owner !== this.parent[position]) lines.push(["", `now part of slot ${owner} “${visible(this.texts[owner])}”`]);
    }
    if (state === EVICTED) lines.push(["", this.lossOf(position)]);
    if (owner >= 0) lines.push(["", this.slotFacts(owner)]);
    if (state !== UNSEEN) lines.push(["", this.massFacts(position, owner)]);
    this.detail(lines);
  }

  lossOf(position) {
    if (this.death[position] === this.leave[position]) return `its slot was evicted at step ${this.death[position]}`;
    return `went into slot ${this.parent[position]} at step ${this.leave[position]}, which was evicted with it at step ${this.death[position]}`;
  }

  slotFacts(slot) {
    let votes = 0;
    for (const owner of this.owners()) if (owner === slot) votes++;
    return votes === 1 ? "its slot stands for itself alone" : `slot ${slot} stands for ${votes} tokens since step ${this.absorb[slot]}`;
  }

  massFacts(position, owner) {
    const { massesStep, trueMass, slotMass } = this.data;
    if (massesStep !== this.step) return "";
    const parts = [`true mass ${number(half(trueMass[position]))}`];
    if (owner >= 0) parts.push(`its slot receives ${number(half(slotMass[owner]))}`);
    return parts.join(", ");
  }

  detail(lines) {
    const box = this.part("detail");
    box.replaceChildren();
    for (const [strong, text] of lines) {
      if (strong) box.append(element("strong", "", strong));
      if (text) box.append(element("span", "", text));
    }
  }

  light(slot, position) {
    this.unlight();
    const owner = this.owners();
    if (slot !== null) for (let t = 0; t < this.tokens; t++) if (owner[t] === slot) this.lit.push(t);
    if (position !== undefined && !this.lit.includes(position)) this.lit.push(position);
    this.litSlot = slot;
    for (const t of this.lit) this.spans[t]?.classList.add("lit");
    if (slot !== null) this.spans[slot]?.classList.add("pivot");
    this.drawGrid();
  }

  lightSlot(slot) { this.light(slot, slot); }

  unlight() {
    for (const t of this.lit) this.spans[t]?.classList.remove("lit", "pivot");
    this.lit = [];
    this.litSlot = null;
  }
}
