"""KVMerger, figures 1 and 4: the schematics, drawn from a dozen tokens of a recorded run, with the claims."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.attention_rows import heads_with_attention
from kvlab.atlas.analysis.merging_sets import Walkthrough, key_error, representing_keys, walkthrough
from kvlab.atlas.evidence import Evidence, basis_of, gather, interval_of, mean_text
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import merging_steps as figures
from kvlab.atlas.figures.merging_steps import evict_least_attended
from kvlab.atlas.kvmerger.recordings import BUDGETS, METHODS, eviction_sentence, run_with_keys
from kvlab.atlas.measurements import comparison
from kvlab.core.errors import UserError
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import percent, plural

KEEPS_MORE = "Eviction loses the evicted tokens for good; merging keeps them in fewer states."
LEADS = "The pivot of a set is its most attended token, and the others are weighted by their distance to it."
NEARER = Threshold(0.0, "at as many slots, a key that is nearer to the original keeps more of it")


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `window_errors` of the window with most sets of its prompt."""
    rows = []
    for layer, head in heads_with_attention(run):
        try:
            rows.append({"layer": layer, "head": head, **window_errors(walkthrough(run, layer, head))})
        except UserError:
            continue  # no similar neighbours in this head
    return pd.DataFrame(rows)


def window_errors(walk: Walkthrough) -> dict[str, float]:
    """`merging` and `evicting` (mean relative error of the keys at the same number of slots), number of `sets`, and
    how many of them have the most `attended` and the `heaviest` token as pivot."""
    slots = int(walk.tokens["set"].nunique())
    merging, evicting = (
        key_error(walk.keys, left) for left in (representing_keys(walk), evict_least_attended(walk, slots))
    )
    sets = [group for _, group in walk.tokens.groupby("set") if len(group) > 1]
    pivots = [group[group["position"] == group["pivot"]].iloc[0] for group in sets]
    attended = sum(bool(p["attention"] >= g["attention"].max()) for p, g in zip(pivots, sets, strict=True))
    heaviest = sum(bool(p["weight"] >= g["weight"].max()) for p, g in zip(pivots, sets, strict=True))
    return {
        "merging": merging,
        "evicting": evicting,
        "sets": len(sets),
        "attended": attended,
        "heaviest": heaviest,
    }


EVIDENCE = Evidence("merging-sets", head_rows)


def keeps_more(rows: pd.DataFrame) -> Claim:
    """How much larger the key error is after evicting than after merging to as many slots; a dropped key has 1."""
    if rows.empty:
        return judge(KEEPS_MORE, None, NEARER, Basis(), "No head has two neighbouring keys that are alike.")
    by_prompt = rows.groupby("prompt", sort=False)[["merging", "evicting"]].mean()
    gap = interval_of((by_prompt["evicting"] - by_prompt["merging"]).tolist())
    merging, evicting = (interval_of(by_prompt[name].tolist()) for name in ("merging", "evicting"))
    finding = (
        f"At as many slots keys are {mean_text(merging, percent)} off after merging and {mean_text(evicting, percent)} "
        f"after evicting (a dropped key is 100 % off), a gap of {mean_text(gap, percent)}; mean over heads, a dozen "
        "tokens of each."
    )
    return judge(KEEPS_MORE, gap, NEARER, basis_of(rows), finding)


def pivot_leads(rows: pd.DataFrame) -> Claim:
    """All sets of several tokens count; a single one whose pivot does not lead refutes the claim."""
    if rows.empty:
        return Claim(LEADS, OPEN, "No head has two neighbouring keys that are alike.")
    sets, attended, heaviest = (int(rows[name].sum()) for name in ("sets", "attended", "heaviest"))
    basis = basis_of(rows)
    told = plural(sets, "set")
    finding = f"In {attended:,} of {told} the pivot is the most attended token, in {heaviest:,} it weighs most."
    return Claim(LEADS, judge_universal(2 * sets - attended - heaviest, basis), finding, basis)


def draw_three_ways(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: quantisation, eviction and merging of the same keys."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    figure = figures.three_ways(walk, _texts(run), theme)
    kept = ~np.isnan(figures.evict_least_attended(walk)).all(axis=1)
    off = np.linalg.norm(representing_keys(walk) - walk.keys, axis=1) / np.linalg.norm(walk.keys, axis=1)
    frame = _named(run, walk).assign(kept_by_eviction=kept, key_error_of_merging=off)
    claim = keeps_more(gather(sources, EVIDENCE))
    return (Drawn("three ways", figure, frame, figures.caption_three_ways(walk), of_run(run), claim),)


def draw_pipeline(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: similarity, sets, pivots, weights and merged slots, as frames."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    figure = figures.merging_pipeline(walk, _texts(run), theme)
    caption = figures.caption_merging_pipeline(walk).within(after=eviction_sentence(run))
    return (Drawn("pipeline", figure, _named(run, walk), caption, of_run(run), pivot_leads(gather(sources, EVIDENCE))),)


def _window(sources: Sources, choice: Choice) -> tuple[Run, Walkthrough] | Needs:
    run = run_with_keys(sources)
    if isinstance(run, Needs):
        return run
    try:
        return run, walkthrough(run, choice.layer, choice.head)
    except UserError as error:
        return Needs(str(error), comparison(sources, METHODS, BUDGETS))


def _named(run: Run, walk: Walkthrough) -> pd.DataFrame:
    texts = _texts(run)
    return walk.tokens.assign(text=[texts[position] for position in walk.tokens["position"]], threshold=walk.threshold)


def _texts(run: Run) -> list[str]:
    tokens = run.tokens
    return [str(text) for text in tokens.loc[tokens["phase"] != "free", "text"]]


DRAWINGS = {"fig-1": draw_three_ways, "fig-4": draw_pipeline}
