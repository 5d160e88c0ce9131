/* The text of a run, each token shaded by a class the server gave it; lit by any chart of the page that runs along the
   text, and lighting them back. Words are chosen by clicking the first and, with shift, the last. */

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function visible(text, limit = 32) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍") || "∅";
  return shown.length > limit ? shown.slice(0, limit - 1) + "…" : shown;
}

class Panel {
  constructor(root) {
    this.root = root.querySelector(".kv-text-panel");
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.cleanups = [];
    this.charts = new Charts((position, chart) => this.fromChart(position, chart), () => this.dim());
    const on = (node, type, handler) => { node.addEventListener(type, handler); this.cleanups.push(() => node.removeEventListener(type, handler)); };
    on(this.part("text"), "mouseover", (event) => this.over(event.target));
    on(this.part("text"), "mouseleave", () => this.dim());
    on(this.part("text"), "click", (event) => this.choose(event));
    on(this.part("map"), "click", (event) => this.jump(event));
    const observer = new ResizeObserver(() => this.drawMap());
    observer.observe(this.root);
    this.cleanups.push(() => observer.disconnect());
  }

  dispose() {
    this.charts.dispose();
    this.blocks?.dispose();
    this.cleanups.forEach((clean) => clean());
  }

  refresh(data) {
    this.data = data;
    if (this.identity !== data.identity) { this.identity = data.identity; this.build(); }
    this.codes = data.codes;
    this.blocks.wear(data.codes);
    data.classes.forEach(({ colour }, code) => this.root.style.setProperty(`--c${code}`, colour));
    this.legend();
    this.showChosen();
    this.drawMap();
    if (data.scroll !== null && data.scroll !== this.scrolled) { this.scrolled = data.scroll; this.scrollTo(data.scroll); }
  }

  build() {
    this.blocks?.dispose();
    this.codes = new Uint8Array(this.data.texts.length).fill(255);
    this.blocks = new Blocks(this.part("text"), this.data.texts, (span, position) => this.dress(span, position));
    this.spans = this.blocks.spans;
  }

  dress(span, position) {
    const [from, to] = this.data.chosen ?? [0, -1];
    this.paint(span, this.codes[position]);
    span.classList.toggle("chosen", position >= from && position <= to);
  }

  paint(span, code) {
    span.style.setProperty("--own", `var(--c${code})`);
    span.dataset.cue = this.data.classes[code]?.cue ?? "none";
  }

  legend() {
    const box = this.part("legend"), counts = new Array(this.data.classes.length).fill(0);
    this.codes.forEach((code) => counts[code]++);
    box.replaceChildren();
    this.data.classes.forEach(({ name, cue }, code) => {
      if (!counts[code]) return;
      const chip = element("span", "chip"), swatch = element("span", "t", "abc");
      swatch.dataset.cue = cue;
      swatch.style.setProperty("--own", `var(--c${code})`);
      chip.append(swatch, element("span", "", `${name} ${counts[code].toLocaleString("en")}`));
      box.append(chip);
    });
  }

  /* The whole text as a strip: a column for every few tokens, in the colour most of them have. */
  drawMap() {
    const node = this.part("map"), width = node.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!width || !this.codes.length) return;
    node.width = Math.round(width * ratio);
    node.height = Math.round(16 * ratio);
    const context = node.getContext("2d"), columns = Math.min(node.width, this.codes.length);
    const counts = new Uint32Array(256);
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * this.codes.length) / columns), to = Math.floor(((column + 1) * this.codes.length) / columns);
      counts.fill(0);
      for (let at = from; at < to; at++) counts[this.codes[at]]++;
      const top = counts.indexOf(Math.max(...counts));
      context.fillStyle = this.data.classes[top]?.colour ?? "#888";
      context.fillRect((column * node.width) / columns, 0, Math.ceil(node.width / columns) + 0.5, node.height);
    }
  }

  jump(event) {
    const box = this.part("map").getBoundingClientRect();
    this.scrollTo(Math.floor(((event.clientX - box.left) / box.width) * this.spans.length));
  }

  scrollTo(position) {
    const box = this.part("text"), span = this.blocks.at(position);
    if (!span) return;
    /* Blocks not laid out yet have a guessed height: once there they are, and a second and third look hit. */
    let looks = 3;
    const go = () => {
      box.scrollTop = span.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop - box.clientHeight / 2;
      if (--looks) requestAnimationFrame(go);
    };
    go();
  }

  over(node) {
    if (node.dataset?.p === undefined) return;
    const position = Number(node.dataset.p);
    this.light(position);
    this.charts.mark(position);
  }

  fromChart(position, chart) {
    if (position < 0 || position >= this.spans.length) return;
    this.light(position);
    this.scrollTo(position);
    this.charts.mark(position, chart);
  }

  light(position) {
    this.lit?.classList.remove("lit");
    this.lit = this.blocks.at(position);
    this.lit?.classList.add("lit");
    const note = this.data.notes?.[position];
    const named = this.data.classes[this.codes[position]]?.name ?? "";
    this.say(`${position} “${visible(this.data.texts[position])}”`, named + (note ? ` · ${note}` : ""));
  }

  dim() {
    this.lit?.classList.remove("lit");
    this.lit = null;
    this.charts.unmark();
    this.say("", this.data.hint);
  }

  say(strong, text) {
    this.part("detail").replaceChildren(...(strong ? [element("strong", "", strong)] : []), element("span", "", text));
  }

  choose(event) {
    if (event.target.dataset.p === undefined || !this.data.choosing) return;
    const position = Number(event.target.dataset.p), [from] = this.data.chosen ?? [position];
    const span = event.shiftKey && this.data.chosen ? [Math.min(from, position), Math.max(from, position)] : [position, position];
    window.getSelection()?.removeAllRanges();
    this.component.setTriggerValue("chosen", span);
  }

  showChosen() {
    const [before, after] = this.shown ?? [0, -1], [from, to] = this.data.chosen ?? [0, -1];
    for (let at = before; at <= after; at++) this.spans[at]?.classList.remove("chosen");
    for (let at = from; at <= to; at++) this.spans[at]?.classList.add("chosen");
    this.shown = [from, to];
    this.dim();
  }
}

export default mountedWithTexts(Panel);
