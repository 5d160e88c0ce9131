/* A step scrubber for pages whose figures the server draws: it tells where the reader stopped, and while playing waits
   for each picture before it asks for the next. */

const REST_MS = 160, PLAY_MS = 350, LATE_MS = 5000;

class Scrubber {
  constructor(root) {
    this.root = root.querySelector(".kv-scrubber");
    this.part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    this.bar = new StepBar(this);
  }

  dispose() {
    this.stop();
    clearTimeout(this.wish);
    this.bar.dispose();
  }

  refresh(data) {
    const told = this.data?.step;
    this.data = data;
    const other = data.identity !== this.identity || this.index === undefined;
    if (other || data.step !== told && !this.onTheWay(data.step)) this.index = Math.max(0, data.steps.indexOf(data.step));
    this.identity = data.identity;
    this.draw();
    if (this.isPlaying) { clearTimeout(this.beat); this.beat = setTimeout(() => this.forward(), PLAY_MS); }
  }

  draw() {
    const { steps, texts, step, why } = this.data, at = steps[this.index];
    this.bar.show(steps, at, at === step ? why : "", texts[this.index] ?? "");
    this.root.dataset.step = step;
  }

  /* One step is told at once; of many that follow one another the last, once they rest. */
  go(index) {
    const now = performance.now(), rested = !(now - this.went < REST_MS);
    this.went = now;
    this.index = Math.max(0, Math.min(this.data.steps.length - 1, index));
    this.draw();
    clearTimeout(this.wish);
    this.wish = 0;
    if (rested) this.tell();
    else this.wish = setTimeout(() => { this.wish = 0; this.tell(); }, REST_MS);
  }

  /* Whether the reader has gone on from this step, which the server has just drawn, and will hear of it. */
  onTheWay(step) {
    if (step === this.asked) this.asked = undefined;
    return Boolean(this.wish) || this.asked !== undefined && performance.now() - this.went < LATE_MS;
  }

  move(by) { this.stop(); this.go(this.index + by); }

  tell() {
    const step = this.data.steps[this.index];
    if (step === this.data.step && this.asked === undefined) return;
    this.asked = step;
    this.component.setStateValue("step", step);
  }

  nextEvent() {
    this.stop();
    const here = this.data.steps[this.index], later = this.data.events.find((step) => step > here);
    if (later !== undefined) this.go(this.data.steps.indexOf(later));
  }

  toggle() {
    if (this.isPlaying) { this.stop(); return; }
    if (this.index === this.data.steps.length - 1) this.index = -1;
    this.playing(true);
    this.forward();
  }

  forward() {
    if (!this.isPlaying) return;
    if (this.index >= this.data.steps.length - 1) { this.stop(); return; }
    this.index++;
    this.draw();
    this.tell();
  }

  stop() { this.playing(false); }

  playing(on) {
    this.isPlaying = on;
    clearTimeout(this.beat);
    this.bar.playing(on);
  }
}

export default mounted(Scrubber);
