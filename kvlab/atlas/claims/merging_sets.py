"""KVMerger, figures 1 and 4: merging keeps what eviction loses, and a set's pivot leads it."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.analysis.attention_rows import heads_with_attention
from kvlab.atlas.analysis.merging_walkthrough import Walkthrough, key_error, represented, walkthrough
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.figures.merging_steps import evicted
from kvlab.atlas.prompt_means import basis_of, interval_of, words_of
from kvlab.common.errors import UserError
from kvlab.figures.base.words import percent, plural
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, never
from kvlab.trace.reader import Run

KEEPS_MORE = "Eviction loses the evicted tokens for good; merging keeps them in fewer states."
LEADS = "The pivot of a set is its most attended token, and the others are weighted by their distance to it."
NEARER = Threshold(0.0, "at as many slots, a key that is nearer to the original keeps more of it")


def of_run(run: Run) -> pd.DataFrame:
    """A row a head: what `of_window` says of the window in which its prompt has most sets."""
    rows = []
    for layer, head in heads_with_attention(run):
        try:
            rows.append({"layer": layer, "head": head, **of_window(walkthrough(run, layer, head))})
        except UserError:
            continue  # no two neighbours of this head are alike
    return pd.DataFrame(rows)


def of_window(walk: Walkthrough) -> dict[str, float]:
    """`merging` and `evicting` (mean relative error of the keys at as many slots), `sets`, and of these `attended` and
    `heaviest`: those whose pivot is their most attended token and weighs most."""
    slots = int(walk.tokens["set"].nunique())
    merging, evicting = (key_error(walk.keys, left) for left in (represented(walk), evicted(walk, slots)))
    sets = [group for _, group in walk.tokens.groupby("set") if len(group) > 1]
    pivots = [group[group["position"] == group["pivot"]].iloc[0] for group in sets]
    attended = sum(bool(p["attention"] >= g["attention"].max()) for p, g in zip(pivots, sets, strict=True))
    heaviest = sum(bool(p["weight"] >= g["weight"].max()) for p, g in zip(pivots, sets, strict=True))
    return {
        "merging": merging, "evicting": evicting, "sets": len(sets), "attended": attended, "heaviest": heaviest,
    }  # fmt: skip


EVIDENCE = Evidence("merging-sets", of_run)


def keeps_more(rows: pd.DataFrame) -> Claim:
    """How much further off keys are after evicting than after merging to as many slots; a dropped key counts 1."""
    if rows.empty:
        return judge(KEEPS_MORE, None, NEARER, Basis(), "No head has two neighbouring keys that are alike.")
    by_prompt = rows.groupby("prompt", sort=False)[["merging", "evicting"]].mean()
    gap = interval_of((by_prompt["evicting"] - by_prompt["merging"]).tolist())
    merging, evicting = (interval_of(by_prompt[name].tolist()) for name in ("merging", "evicting"))
    finding = (
        f"At as many slots keys are {words_of(merging, percent)} off after merging and {words_of(evicting, percent)} "
        f"after evicting (a dropped key is 100 % off), a gap of {words_of(gap, percent)}; mean over heads, a dozen "
        "tokens of each."
    )
    return judge(KEEPS_MORE, gap, NEARER, basis_of(rows), finding)


def pivot_leads(rows: pd.DataFrame) -> Claim:
    """Every set of several tokens counts; one whose pivot does not lead is enough against it."""
    if rows.empty:
        return Claim(LEADS, OPEN, "No head has two neighbouring keys that are alike.")
    sets, attended, heaviest = (int(rows[name].sum()) for name in ("sets", "attended", "heaviest"))
    basis, told = basis_of(rows), plural(sets, "set")
    finding = f"In {attended:,} of {told} the pivot is the most attended token, in {heaviest:,} it weighs most."
    return Claim(LEADS, never(2 * sets - attended - heaviest, basis), finding, basis)
