"""KeepKV, figure 3: with its votes a merged slot keeps the influence of its tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import Lineage, fold
from kvlab.atlas.analysis.attention_rows import heads_with_attention
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text
from kvlab.figures.base.words import number, percent
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run

KEEPS = "With its votes the merged slot keeps the influence its tokens had."
WHY = "a fifth: the paper proves it for the merge's own query and claims it of later ones without a number"
NEAR_ONE = Threshold(0.8, WHY, up_to=1.25)


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head, sums over all merged slots and later steps: attention received (`mass`), attention of their
    tokens in the full cache (`true_mass`), and absolute difference (`off`); `slots` counts them."""
    every, rows = run.attention_every, []
    for layer, head in heads_with_attention(run):
        true, slot = (array.astype(np.float64) for array in run.attention(layer, head, thinned=True))
        events = run.select("events", layer, head)
        lineage = fold(events, run.select("steps", layer, head))
        found = slot_sums(lineage, events, true, slot, every)
        if found["slots"]:
            rows.append({"layer": layer, "head": head, **found})
    return pd.DataFrame(rows)


def slot_sums(
    lineage: Lineage, events: pd.DataFrame, true: np.ndarray, slot: np.ndarray, every: int
) -> dict[str, float]:
    """The sums of one head; `true` and `slot` are (rows, tokens), one row per `every` steps."""
    merges = events[events["target"] >= 0]
    last = np.full(lineage.tokens, np.iinfo(np.int64).max)
    mass = true_mass = off = 0.0
    seen: set[int] = set()
    by_step = {int(step): group["target"].to_numpy(np.int64) for step, group in merges.groupby("step")}
    for step in lineage.steps.tolist():
        row = step // every
        last[by_step.get(step, np.empty(0, np.int64))] = step  # the step of the merge itself does not count
        if step % every == 0 and row < len(true):
            owner = lineage.owners(step)[: true.shape[1]]
            inside = owner >= 0
            sums = np.bincount(owner[inside], true[row, : len(owner)][inside], minlength=lineage.tokens)
            merged = np.flatnonzero((last < step) & lineage.alive(step))
            gets = slot[row, merged]
            mass, true_mass = mass + float(gets.sum()), true_mass + float(sums[merged].sum())
            off += float(np.abs(gets - sums[merged]).sum())
            seen.update(merged.tolist())
    return {"mass": mass, "true_mass": true_mass, "off": off, "slots": len(seen)}


EVIDENCE = Evidence("slot-influence", head_rows, ("keepkv",))


def keeps(rows: pd.DataFrame) -> Claim:
    """Attention of merged slots relative to that of their tokens, over all slots and later steps."""
    if rows.empty or not rows["true_mass"].sum():
        return Claim(KEEPS, OPEN, "No merged slot lived for a further step.")
    sums = rows.groupby("prompt", sort=False)[["mass", "true_mass", "off"]].sum()
    ratio = interval_of((sums["mass"] / sums["true_mass"]).tolist())
    off = interval_of((sums["off"] / sums["true_mass"]).tolist())
    slots = int(rows["slots"].sum())
    finding = (
        f"After their merge {slots:,} slots get {mean_text(ratio, number)} times the attention their tokens would have "
        f"had; slot by slot and step by step they are off by {mean_text(off, percent)} of it."
    )
    return judge(KEEPS, ratio, NEAR_ONE, basis_of(rows, slots), finding)
