"""Runs beside one another: how much attention each one's merges lose, and where a step's attention goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.attention.bound import query_heads_per_slot
from kvlab.analysis.comparison.compare import unique_labels
from kvlab.atlas.analysis.one_merge import LEAST_MASS, OneMerge
from kvlab.trace.reader import Run

EXACT_RULES = ("bias", "paper", "min-norm")
CONVEX = ("cam", "d2o", "kvmerger", "pyramid-pool")  # unless given a mass rule that kvlab adds
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SAG_COLUMNS = [
    "label", "method", "rule", "merges", *(f"q{round(100 * q):02d}" for q in QUANTILES), "sagging", "total", "size",
]  # fmt: skip


def rule_of(run: Run) -> str:
    """`exact` (KeepKV at the present query), `grouped` (the same where query heads share a slot, which cannot be exact
    for each), `predicted` (KeepKV on its averages), `votes`, `convex` (a merged slot counts as one) or `other`."""
    record, options = run.record, run.record.hyper_parameters
    if record.method == "keepkv" and options.get("mass", "rule") == "rule":
        if options.get("rule", "bias") not in EXACT_RULES:
            return "votes"
        if options.get("predict") != "current":
            return "predicted"
        return "exact" if query_heads_per_slot(run) == 1 or options.get("per_head_mass") else "grouped"
    return "convex" if record.method in CONVEX and options.get("mass", "none") == "none" else "other"


def merge_groups(run: Run) -> pd.DataFrame:
    """One row for all that went into one slot in one step: columns step, layer, head, slot, before, after, sag.

    `sag` is (before - after) / before, attention of the same query: positive where the merge lost attention, not
    defined where there was none. What a step evicts beside its merges lifts everything else; `after` is without that
    lift, times 1 - the evicted attention.
    """
    columns = ["step", "layer", "head", "target", "mass_source", "mass_target", "mass_after"]
    events, place = run.select("events", columns=columns), ["step", "layer", "head"]
    evicted = events[events["target"] < 0].groupby(place)["mass_source"].sum().rename("evicted")
    merged = events[(events["target"] >= 0) & events["mass_after"].notna()]
    groups = merged.groupby([*place, "target"])
    table = groups.agg(
        sources=("mass_source", "sum"), own=("mass_target", "first"), after=("mass_after", "first")
    ).reset_index()
    lift = table.join(evicted, on=place)["evicted"].fillna(0.0)
    table["before"], table["after"] = table["sources"] + table["own"], table["after"] * (1 - lift)
    table["sag"] = (table["before"] - table["after"]) / table["before"].where(table["before"] > 0)
    return table.rename(columns={"target": "slot"})[[*place, "slot", "before", "after", "sag"]]


def sag_of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run that merged: label, method, rule, merges (groups with at least `LEAST_MASS` before), quantiles of
    the sag (q05 .. q95; positive is lost), sagging (share of them that lost), total (their whole loss over their mass)
    and size (the same with every merge's loss taken as positive)."""
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        groups = merge_groups(run)
        heavy = groups[groups["before"] >= LEAST_MASS]
        if heavy.empty:
            continue
        quantiles = {f"q{round(100 * q):02d}": heavy["sag"].quantile(q) for q in QUANTILES}
        rows.append(
            {
                "label": label, "method": run.record.method, "rule": rule_of(run), "merges": len(heavy), **quantiles,
                "sagging": float((heavy["sag"] > 0).mean()),
                "total": float((heavy["before"] - heavy["after"]).sum() / heavy["before"].sum()),
                "size": float((heavy["before"] - heavy["after"]).abs().sum() / heavy["before"].sum()),
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=SAG_COLUMNS)


def where_attention_goes(runs: Sequence[Run], layer: int, head: int, step: int) -> pd.DataFrame:
    """One row a run with a shadow: shares of the full cache's attention at one step of one head that go to kept tokens,
    to merged slots as they are, are lost by sag (negative: merged slots get more than they should) and by eviction.

    Columns label, method, kept, merged, sag, regret, output_error, votes (largest).
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        steps = run.select("steps", layer, head)
        steps = steps[steps["kept_mass"].notna()]
        if steps.empty:
            continue
        at = steps.iloc[int(np.searchsorted(steps["step"], min(step, steps["step"].max())))]
        rows.append(
            {
                "label": label, "method": run.record.method, "step": int(at["step"]), "kept": at["kept_mass"],
                "merged": at["merged_mass"], "sag": at["sag"], "regret": at["regret"],
                "output_error": at["output_error"], "votes": at["max_votes"],
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def before_and_after(merges: Sequence[tuple[str, str, OneMerge]]) -> pd.DataFrame:
    """One row a (label, method, merge): columns label, method, step, slot, own, sources, after, lost (share of what the
    parts had; not defined where they had nothing), votes, perturbation."""
    rows = []
    for label, method, merge in merges:
        first, before = merge.events.iloc[0], merge.mass_before
        rows.append(
            {
                "label": label, "method": method, "step": merge.step, "slot": merge.target,
                "own": first["mass_target"], "sources": merge.events["mass_source"].sum(), "after": merge.mass_after,
                "lost": (before - merge.mass_after) / before if before > 0 else np.nan,
                "votes": first["votes_after"], "perturbation": first["perturbation"],
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
