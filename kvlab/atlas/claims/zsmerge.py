"""ZSMerge, figures 1 and 2: merging drifts less than eviction, and slots never exceed their budget."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.comparison.compare import headline
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text
from kvlab.figures.base.words import number, percent
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run

EVICTING = ("h2o", "snapkv", "streaming-llm", "pyramidkv", "adakv", "window")
CLOSER = "Eviction makes attention drift; zero-shot merging loses less of it."
BOUNDED = (
    "The cache never holds more than its budget of proximity, context and residual slots, and what leaves is merged, "
    "not dropped."
)
LESS_DRIFT = Threshold(0.0, "the merging run is nearer to the full cache, on the same prompt and budget")


def drift(run: Run) -> pd.DataFrame:
    """One row: mean `kl` from the full cache (nats per token), the share of its `bytes`, and the `budget`."""
    line = headline([run]).iloc[0]
    return pd.DataFrame([{"kl": line["mean_kl"], "bytes": line["live_ratio"], "budget": str(run.record.budget)}])


def filled(run: Run) -> pd.DataFrame:
    """One row per head: number of `steps`, steps `over` the budget, slots `evicted` and `merged`, and the largest
    `fill`."""
    steps = run.steps
    table = steps.assign(
        over=(steps["live_slots"] > steps["budget_slots"]).astype(int),
        fill=steps["live_slots"] / steps["budget_slots"],
    )
    groups = table.groupby(["layer", "head"])
    sums = groups[["over", "evicted", "merged"]].sum()
    return sums.assign(steps=groups.size(), fill=groups["fill"].max()).reset_index()


DRIFT = Evidence("drift", drift, (*EVICTING, "zsmerge"))
FILLED = Evidence("filled", filled, ("zsmerge",))


def closer(rows: pd.DataFrame, evicting: str, merging: str) -> Claim:
    """KL under eviction minus KL under merging, prompt by prompt; `evicting` and `merging` are run labels."""
    known = rows.dropna(subset="kl") if "kl" in rows else rows.iloc[:0]
    pairs = known.pivot_table(index="prompt", columns="label", values="kl", aggfunc="first", sort=False)
    if not {evicting, merging} <= set(pairs.columns) or pairs[[evicting, merging]].dropna().empty:
        return Claim(CLOSER, OPEN, "These runs recorded no KL from the full cache.")
    pairs = pairs[[evicting, merging]].dropna()
    gap = interval_of((pairs[evicting] - pairs[merging]).tolist())
    told = ", ".join(
        f"{label} {mean_text(interval_of(pairs[label].tolist()), number)} "
        f"({percent(known.loc[known['label'] == label, 'bytes'].mean())} of the bytes)"
        for label in (evicting, merging)
    )
    finding = f"KL from the full cache in nats per token: {told}; eviction minus merging {mean_text(gap, number)}."
    return judge(CLOSER, gap, LESS_DRIFT, Basis(len(pairs)), finding)


def bounded(rows: pd.DataFrame) -> Claim:
    """No head exceeds its budget at any step, and nothing is dropped."""
    if rows.empty:
        return Claim(BOUNDED, OPEN, "There is no run of ZSMerge.")
    over, lost, merged, steps = (int(rows[name].sum()) for name in ("over", "evicted", "merged", "steps"))
    basis = basis_of(rows, merged)
    finding = (
        f"The fullest head holds {percent(rows['fill'].max())} of its budget, above it at {over:,} of {steps:,} heads "
        f"and steps; of the slots that left, {merged:,} were merged and {lost:,} dropped."
    )
    return Claim(BOUNDED, judge_universal(over + lost, basis), finding, basis)
