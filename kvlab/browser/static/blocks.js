/* A long text as blocks of words: those in view are made at once, the others as they come near, so that a page of 130,000
   tokens is there as soon as one of a hundred, and as quick to change: a hundred thousand words make every change of the
   page slower. Until then a block is its bare text. What words look like changes in view only, and elsewhere as they come
   near. Put before the component that shows a text. */

const BLOCK = 256, AT_ONCE = 512, FIRST_REST_MS = 1500, SPARE_MS = 4, PAUSE_MS = 60;

function shownText(text) { return text === "" ? "∅" : text; }

class Blocks {
  /* `dress(span, position)` is called for each word when it is made, and again when its code has changed (see `wear`). */
  constructor(panel, texts, dress) {
    this.panel = panel;
    this.texts = texts;
    this.dress = dress;
    this.spans = new Array(texts.length);
    this.worn = new Uint8Array(texts.length).fill(255);
    this.near = new Set();
    this.watcher = new IntersectionObserver((seen) => seen.forEach((one) => this.seen(one)), { root: panel, rootMargin: "800px" });
    this.cut();
    for (let block = 0; block < this.starts.length && this.starts[block] < AT_ONCE; block++) this.come(block);
    this.resting = setTimeout(() => this.rest(0), FIRST_REST_MS);
  }

  /* Blocks out of sight are not laid out; cut at line ends so that the cut is not seen. */
  cut() {
    this.starts = [0];
    this.texts.forEach((text, position) => {
      const inside = position + 1 - this.starts.at(-1);
      if ((inside >= BLOCK && text.includes("\n")) || inside >= 8 * BLOCK) this.starts.push(position + 1);
    });
    if (this.starts.length > 1 && this.starts.at(-1) === this.texts.length) this.starts.pop();
    this.nodes = this.starts.map((_, block) => {
      const node = document.createElement("div");
      node.className = "chunk";
      node.dataset.block = block;
      this.watcher.observe(node);
      return node;
    });
    this.panel.replaceChildren(...this.nodes);
  }

  seen({ isIntersecting, target }) {
    const block = Number(target.dataset.block);
    if (isIntersecting) this.come(block);
    else this.near.delete(block);
  }

  come(block) {
    this.near.add(block);
    this.fill(block);
    this.freshen(block);
  }

  stop(block) { return this.starts[block + 1] ?? this.texts.length; }

  fill(block) {
    const start = this.starts[block];
    if (start >= this.texts.length || this.spans[start]) return;
    const words = document.createDocumentFragment();
    for (let position = start; position < this.stop(block); position++) words.append(this.word(position));
    this.nodes[block].replaceChildren(words);
  }

  /* Of each position a number below 255 that decides its looks. For a hundred thousand words at once it would take as long
     as all else that a change does. */
  wear(codes) {
    this.codes = codes;
    this.near.forEach((block) => this.freshen(block));
  }

  freshen(block) {
    if (!this.codes) return;
    for (let position = this.starts[block]; position < this.stop(block); position++) {
      if (this.worn[position] !== this.codes[position]) this.put(this.spans[position], position);
    }
  }

  put(span, position) {
    this.dress(span, position);
    if (this.codes) this.worn[position] = this.codes[position];
  }

  word(position) {
    const text = this.texts[position], span = document.createElement("span");
    span.textContent = shownText(text);
    span.className = "t";
    span.dataset.p = position;
    if (text.includes("\n")) span.dataset.nl = "";
    this.spans[position] = span;
    this.put(span, position);
    return span;
  }

  /* The word at a position, made now if it is not there yet. */
  at(position) {
    if (!this.spans[position] && position >= 0 && position < this.texts.length) this.fill(this.starts.findLastIndex((start) => start <= position));
    return this.spans[position];
  }

  /* The rest of the text, bare, so that the browser's own search finds all of it; slowly, as what the reader does goes
     before: a browser that waits for the server is idle too, and on a small machine the server is what it would hold up. */
  rest(block) {
    const until = performance.now() + SPARE_MS;
    for (; block < this.starts.length && performance.now() < until; block++) {
      const node = this.nodes[block];
      if (!node.firstChild) node.textContent = this.texts.slice(this.starts[block], this.stop(block)).map(shownText).join("");
    }
    if (block < this.starts.length) this.resting = setTimeout(() => this.rest(block), PAUSE_MS);
  }

  dispose() {
    clearTimeout(this.resting);
    this.watcher.disconnect();
  }
}
