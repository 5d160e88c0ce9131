"""Figures 1 and 3: effect of eviction, convex merging and KeepKV on attention, and one merge step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvlab.analysis.comparison.compare import unique_labels
from kvlab.analysis.lineage.tables import token_texts
from kvlab.atlas.analysis import one_merge, sag_by_rule
from kvlab.atlas.claims import sag, slot_influence
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import one_merge as figures
from kvlab.atlas.keepkv.recordings import RULES, merging_runs
from kvlab.atlas.measurements import comparison
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.trace.reader import Run


def draw_rules(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1 on recorded runs: where attention goes, one slot before and after, and all merges per rule."""
    runs = merging_runs(sources)
    if not runs:
        return Needs("This comparison has no run that merged and was recorded in full.", comparison(sources, RULES))
    every = [run for run in sources.runs or runs if run.record.level == "full"]
    table, rows = sag_by_rule.sag_of_runs(runs), gather(sources, sag.EVIDENCE, runs)
    return (
        *_shares(every, runs[0], choice, theme),
        *_slots(runs, sag.exact(rows), choice, theme),
        *_all_merges(runs, table, sag.sags(rows), theme),
    )


def _shares(every: Sequence[Run], first: Run, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    frame = sag_by_rule.where_attention_goes(every, choice.layer, choice.head, choice.step)
    if not len(frame) or (frame["method"] == "full").all():
        return ()
    place = f"layer {choice.layer}, head {choice.head}, step {int(frame['step'].iloc[0])}"
    figure = figures.where_attention_goes(frame, place, theme)
    return (Drawn("where attention goes", figure, frame, figures.read_where_attention_goes(frame), of_run(first)),)


def _slots(runs: list[Run], claim: Claim, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    found = [one_merge.attended_merge(run, choice.layer, choice.head, choice.step, choice.token) for run in runs]
    labelled = [
        (label, run.record.method, merge)
        for label, run, merge in zip(unique_labels(runs), runs, found, strict=True)
        if merge is not None
    ]
    if not labelled:
        return ()
    frame = sag_by_rule.before_and_after(labelled)
    figure = figures.slot_before_and_after(frame, theme)
    reading = figures.read_slot_before_and_after(frame, choice.step)
    return (Drawn("one slot", figure, frame, reading, of_run(runs[0]), claim),)


def _all_merges(runs: list[Run], frame: pd.DataFrame, claim: Claim, theme: Theme) -> tuple[Drawn, ...]:
    if frame.empty:
        return ()
    figure, reading = figures.change_by_rule(frame, theme), figures.read_change_by_rule(frame)
    return (Drawn("all merges", figure, frame, reading, of_run(runs[0]), claim),)


def draw_workflow(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3 on a recorded merge: candidates, averages and votes, and the slot's later attention."""
    runs = [run for run in merging_runs(sources) if run.record.method == "keepkv"]
    if not runs:
        return Needs(
            "This comparison has no KeepKV run that merged and was recorded in full.", comparison(sources, RULES)
        )
    run = sources.run if sources.run in runs else runs[0]
    merge = one_merge.find_merge(run, choice.layer, choice.head, choice.step, choice.token)
    if merge is None:
        why = f"KeepKV merged nothing in layer {choice.layer}, head {choice.head}: choose another head."
        return Needs(why, comparison(sources, RULES))
    model = sources.run_of("full") or run
    texts, threshold = token_texts(run.tokens, run.record.prompt_tokens + run.record.max_new_tokens), _threshold(run)
    near = one_merge.candidates(run, merge)
    parts, later = one_merge.merge_parts(run, model, merge), one_merge.influence_over_steps(run, merge)
    where = of_run(run).at(f"layer {merge.layer}, head {merge.head}, step {merge.step}")
    first = figures.candidate_similarity(near, merge.source, texts, threshold, theme)
    return (
        Drawn("candidates", first, near, figures.read_candidate_similarity(near, merge.source, threshold), where),
        Drawn(
            "votes and scores", figures.parts_of_merge(parts, theme), parts, figures.read_parts_of_merge(parts), where
        ),
        Drawn(
            "influence",
            figures.influence_over_steps(later, theme),
            later,
            figures.read_influence_over_steps(later),
            where,
            slot_influence.keeps(gather(sources, slot_influence.EVIDENCE, [run])),
        ),
    )


def _threshold(run: Run) -> float | None:
    value = run.record.hyper_parameters.get("threshold")
    return float(value) if isinstance(value, int | float) else None


DRAWINGS = {"fig-1": draw_rules, "fig-3": draw_workflow}
