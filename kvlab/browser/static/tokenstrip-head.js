/* One head at a step, derived from its history by the rules of kvlab/analysis/lineage. */

const UNSEEN = 0, SINK = 1, RECENT = 2, KEPT = 3, PIVOT = 4, ABSORBED = 5, EVICTED = 6;
const SINKS = 4, NEVER = 2147483647;

class Head {
  statesAt(step) {
    const { birth, leave, death, absorb, tokens } = this;
    let first = -1, last = -1;
    for (let t = 0; t < tokens; t++) if (leave[t] <= step) { if (first < 0) first = t; last = t; }
    const sinkStop = first < 0 ? 0 : Math.min(first, SINKS), recentStart = first < 0 ? tokens : last + 1;
    const states = new Uint8Array(tokens);
    for (let t = 0; t < tokens; t++) {
      if (birth[t] > step) states[t] = UNSEEN;
      else if (death[t] <= step) states[t] = EVICTED;
      else if (leave[t] <= step) states[t] = ABSORBED;
      else if (absorb[t] <= step) states[t] = PIVOT;
      else states[t] = t < sinkStop ? SINK : t >= recentStart ? RECENT : KEPT;
    }
    return states;
  }

  owners() {
    if (this.ownersStep === this.step && this.ownersCache) return this.ownersCache;
    const owner = new Int32Array(this.tokens);
    for (let t = 0; t < this.tokens; t++) {
      let here = t;
      while (this.leave[here] <= this.step && this.parent[here] >= 0) here = this.parent[here];
      owner[t] = this.birth[t] > this.step || this.death[t] <= this.step ? -1 : here;
    }
    this.ownersStep = this.step;
    this.ownersCache = owner;
    return owner;
  }

  votes() {
    if (this.votesStep === this.step) return this.votesCache;
    const votes = new Int32Array(this.tokens);
    for (const owner of this.owners()) if (owner >= 0) votes[owner]++;
    this.votesStep = this.step;
    this.votesCache = votes;
    return votes;
  }
}
