"""KeepKV, figure 1: convex merging makes attention sag, KeepKV's merge does not."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.analysis.sag_by_rule import LEAST_MASS, merge_groups, rule_of
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.figures.one_merge import RULES
from kvlab.atlas.prompt_means import basis_of, interval_of, mean_text
from kvlab.common.intervals import Interval
from kvlab.figures.base.words import lost, percent
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive
from kvlab.trace.reader import Run

SAGS = "Convex merging gives the merged slot less attention than its parts had: attention sag."
EXACT = "KeepKV's merge leaves the attention of the present query as it was: no sag."
ANY = Threshold(0.0, "each method's merges lose attention, rather than gain it")
CLEAR = Threshold(0.05, "over all methods one part in twenty: the paper draws the loss and prints no number")
NONE = Threshold(0.01, "a hundredth is ten times what rows in half precision can be off by", at_most=True)
CONVEX, AT_THIS_QUERY, PREDICTED = "convex", ("exact", "grouped"), "predicted"
MERGING = ("cam", "d2o", "kvmerger", "pyramid-pool", "keepkv")
SUMS = ["merges", "before", "loss", "moved", "sagging"]


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `rule`, `merges`, and sums over them of attention `before`, `loss` and `moved` (absolute
    loss), and how many are `sagging`; merges with negligible attention are ignored."""
    groups = merge_groups(run)
    heavy = groups[groups["before"] >= LEAST_MASS]
    loss = heavy["before"] - heavy["after"]
    table = heavy.assign(loss=loss, moved=loss.abs(), sagging=loss > 0, merges=1)
    return table.groupby(["layer", "head"])[SUMS].sum().reset_index().assign(rule=rule_of(run))


EVIDENCE = Evidence("sag", head_rows, MERGING)


def sags(rows: pd.DataFrame) -> Claim:
    """Every convex merging method loses attention, and all together clearly."""
    convex = rows[rows["rule"] == CONVEX] if "rule" in rows else rows.iloc[:0]
    if convex.empty:
        return Claim(SAGS, OPEN, "No run here merges by a plain convex combination.")
    every = _lost(convex)
    found = {str(label): _lost(group) for label, group in convex.groupby("label", sort=False)}
    shown = "; ".join(
        f"{label} {mean_text(one, lost)} in {int(group['merges'].sum()):,} merges, {_share(group)} of which sag"
        for (label, group), one in zip(convex.groupby("label", sort=False), found.values(), strict=True)
    )
    verdict, decider, held = decisive([(every, CLEAR), *((one, ANY) for one in found.values())])
    finding = f"Attention of merged slots against the sum of their parts, same query: {shown}."
    return Claim(SAGS, verdict, finding, basis_of(convex, int(convex["merges"].sum())), decider, held)


def exact(rows: pd.DataFrame) -> Claim:
    """KeepKV at the present query changes nothing; its merges at predicted scores are reported as well."""
    ours = rows[rows["rule"].isin((*AT_THIS_QUERY, PREDICTED))] if "rule" in rows else rows.iloc[:0]
    if ours.empty:
        return Claim(EXACT, OPEN, "No run here merges by KeepKV's rule.")
    shown = "; ".join(
        f"{label} ({RULES[group['rule'].iloc[0]]}) {mean_text(_lost(group), lost)} in "
        f"{int(group['merges'].sum()):,} merges, {_share(group, 'moved', 'before')} of it moved"
        for label, group in ours.groupby("label", sort=False)
    )
    now = ours[ours["rule"].isin(AT_THIS_QUERY)]
    finding = f"Attention of merged slots against the sum of their parts: {shown}."
    if now.empty:
        why = " Predicted scores are those of no query: compare keepkv:predict=current, with per_head_mass besides."
        return Claim(EXACT, OPEN, finding + why, basis_of(ours, int(ours["merges"].sum())))
    note = " Query heads that share a slot cannot all be served by one log mass; per_head_mass gives each its own."
    off = {label: _lost(group, size=True) for label, group in now.groupby("label", sort=False)}
    worst_first = sorted(off.values(), key=lambda one: 0.0 if one is None else -one.mean)
    verdict, decider, _ = decisive([(one, NONE) for one in worst_first])
    return Claim(EXACT, verdict, finding + note, basis_of(now, int(now["merges"].sum())), decider, NONE)


def _lost(rows: pd.DataFrame, size: bool = False) -> Interval | None:
    """Share of the attention that is lost, over all merges of a prompt; `size`: its absolute value."""
    sums = rows.groupby("prompt", sort=False)[["loss", "before"]].sum()
    shares = sums["loss"] / sums["before"]
    return interval_of((shares.abs() if size else shares).tolist())


def _share(rows: pd.DataFrame, part: str = "sagging", whole: str = "merges") -> str:
    return percent(float(rows[part].sum() / rows[whole].sum()))
