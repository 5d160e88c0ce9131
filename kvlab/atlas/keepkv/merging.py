"""KeepKV, figures 1 and 3: effect of eviction and merging on attention, and one merge step by step, with the claims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.atlas.analysis import merge_effects
from kvlab.atlas.analysis.attention_rows import heads_with_attention
from kvlab.atlas.analysis.merge_effects import LEAST_MASS, merge_groups, rule_of
from kvlab.atlas.evidence import Evidence, basis_of, gather, interval_of, mean_text
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import one_merge as figures
from kvlab.atlas.measurements import comparison
from kvlab.common.intervals import Interval
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import of_run
from kvlab.views.base.words import lost_share, number, percent
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import Lineage, fold, token_texts

SAGS = "Convex merging gives the merged slot less attention than its parts had: attention sag."
EXACT = "KeepKV's merge leaves the attention of the present query as it was: no sag."
ANY = Threshold(0.0, "each method's merges lose attention, rather than gain it")
CLEAR = Threshold(0.05, "over all methods one part in twenty: the paper draws the loss and prints no number")
NONE = Threshold(0.01, "a hundredth is ten times what rows in half precision can be off by", at_most=True)
CONVEX = "convex"
AT_THIS_QUERY = ("exact", "grouped")
PREDICTED = "predicted"
MERGING = ("cam", "d2o", "kvmerger", "pyramid-pool", "keepkv")
SUMS = ["merges", "before", "loss", "moved", "sagging"]


def sag_rows(run: Run) -> pd.DataFrame:
    """One row per head: `rule`, `merges`, and sums over them of attention `before`, `loss` and `moved` (absolute
    loss), and how many are `sagging`; merges with negligible attention are ignored."""
    groups = merge_groups(run)
    heavy = groups[groups["before"] >= LEAST_MASS]
    loss = heavy["before"] - heavy["after"]
    table = heavy.assign(loss=loss, moved=loss.abs(), sagging=loss > 0, merges=1)
    return table.groupby(["layer", "head"])[SUMS].sum().reset_index().assign(rule=rule_of(run))


SAG = Evidence("sag", sag_rows, MERGING)


def sags(rows: pd.DataFrame) -> Claim:
    """Every convex merging method loses attention, and all together clearly."""
    convex = rows[rows["rule"] == CONVEX] if "rule" in rows else rows.iloc[:0]
    if convex.empty:
        return Claim(SAGS, OPEN, "No run here merges by a plain convex combination.")
    every = _lost(convex)
    found = {str(label): _lost(group) for label, group in convex.groupby("label", sort=False)}
    shown = "; ".join(
        f"{label} {mean_text(one, lost_share)} in {int(group['merges'].sum()):,} merges, {_share(group)} of which sag"
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
        f"{label} ({figures.RULES[group['rule'].iloc[0]]}) {mean_text(_lost(group), lost_share)} in "
        f"{int(group['merges'].sum()):,} merges, {_share(group, 'moved', 'before')} of it moved"
        for label, group in ours.groupby("label", sort=False)
    )
    now = ours[ours["rule"].isin(AT_THIS_QUERY)]
    finding = f"Attention of merged slots against the sum of their parts: {shown}."
    if now.empty:
        why = " Predicted scores are those of no query: compare keepkv:predict=current, with per_head_mass besides."
        return Claim(EXACT, OPEN, finding + why, basis_of(ours, int(ours["merges"].sum())))
    note = " Query heads that share a slot cannot all be served by one log mass; per_head_mass gives each its own."
    note += " What counts is the size of the change in each prompt, whether lost or gained."
    off = {str(label): _lost(group, size=True) for label, group in now.groupby("label", sort=False)}
    worst_first = sorted(off, key=lambda label: 0.0 if (one := off[label]) is None else -one.mean)
    verdict, decider, _ = decisive([(off[label], NONE) for label in worst_first])
    arm = next(label for label in worst_first if off[label] == decider)
    basis = basis_of(now, int(now["merges"].sum()))
    setting = f"with {arm}, which is not the default: that merges at predicted scores"
    return Claim(EXACT, verdict, finding + note, basis, decider, NONE, setting=setting, part=arm)


def _lost(rows: pd.DataFrame, size: bool = False) -> Interval | None:
    """Share of the attention that is lost, over all merges of a prompt; `size`: its absolute value."""
    sums = rows.groupby("prompt", sort=False)[["loss", "before"]].sum()
    shares = sums["loss"] / sums["before"]
    return interval_of((shares.abs() if size else shares).tolist())


def _share(rows: pd.DataFrame, part: str = "sagging", whole: str = "merges") -> str:
    return percent(float(rows[part].sum() / rows[whole].sum()))


KEEPS = "With its votes the merged slot keeps the influence its tokens had."
WHY = "a fifth: the paper proves it for the merge's own query and claims it of later ones without a number"
NEAR_ONE = Threshold(0.8, WHY, up_to=1.25)


def influence_rows(run: Run) -> pd.DataFrame:
    """One row per head, sums over all merged slots and later steps: attention received (`mass`), attention of their
    tokens with nothing dropped (`true_mass`), and absolute difference (`off`); `slots` counts them."""
    every = run.attention_every
    rows = []
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
            mass = mass + float(gets.sum())
            true_mass = true_mass + float(sums[merged].sum())
            off += float(np.abs(gets - sums[merged]).sum())
            seen.update(merged.tolist())
    return {"mass": mass, "true_mass": true_mass, "off": off, "slots": len(seen)}


INFLUENCE = Evidence("slot-influence", influence_rows, ("keepkv",))


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


OWN_MASSES = "keepkv:preset=default:predict=current:per_head_mass=true"
RULES = ("cam", "d2o", "kvmerger", "keepkv:rule=votes", "keepkv", "keepkv:predict=current", OWN_MASSES, "h2o")


def draw_rules(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1 on recorded runs: where attention goes, one slot before and after, and all merges per rule."""
    runs = merging_runs(sources)
    if not runs:
        return Needs("This comparison has no run that merged and was recorded in full.", comparison(sources, RULES))
    every = [run for run in sources.runs or runs if run.record.level == "full"]
    table = merge_effects.sag_of_runs(runs)
    rows = gather(sources, SAG, runs)
    drawn = []
    if len(table):
        figure = figures.change_by_rule(table, theme)
        caption = figures.caption_change_by_rule(table)
        drawn = [Drawn("all merges", figure, table, caption, of_run(runs[0]), sags(rows))]
    return (
        *_shares(every, runs[0], choice, theme),
        *_slots(runs, exact(rows), choice, theme),
        *drawn,
    )


def _shares(every: Sequence[Run], first: Run, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    frame = merge_effects.where_attention_goes(every, choice.layer, choice.head, choice.step)
    if not len(frame) or (frame["method"] == "full").all():
        return ()
    place = f"layer {choice.layer}, head {choice.head}, step {int(frame['step'].iloc[0])}"
    figure = figures.where_attention_goes(frame, place, theme)
    return (Drawn("where attention goes", figure, frame, figures.caption_where_attention_goes(frame), of_run(first)),)


def _slots(runs: list[Run], claim: Claim, choice: Choice, theme: Theme) -> tuple[Drawn, ...]:
    found = [merge_effects.attended_merge(run, choice.layer, choice.head, choice.step, choice.token) for run in runs]
    labelled = [
        (label, run.record.method, merge)
        for label, run, merge in zip(unique_labels(runs), runs, found, strict=True)
        if merge is not None
    ]
    if not labelled:
        return ()
    frame = merge_effects.before_and_after(labelled)
    figure = figures.slot_before_and_after(frame, theme)
    caption = figures.caption_slot_before_and_after(frame, choice.step)
    return (Drawn("one slot", figure, frame, caption, of_run(runs[0]), claim),)


def draw_workflow(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3 on a recorded merge: candidates, averages and votes, and the slot's later attention."""
    runs = [run for run in merging_runs(sources) if run.record.method == "keepkv"]
    if not runs:
        why = "This comparison has no KeepKV run that merged and was recorded in full."
        return Needs(why, comparison(sources, RULES))
    run = sources.run if sources.run in runs else runs[0]
    merge = merge_effects.find_merge(run, choice.layer, choice.head, choice.step, choice.token)
    if merge is None:
        why = f"KeepKV merged nothing in layer {choice.layer}, head {choice.head}: choose another head."
        return Needs(why, comparison(sources, RULES))
    model = sources.run_of("full") or run
    texts = token_texts(run.tokens, run.record.prompt_tokens + run.record.max_new_tokens)
    value = run.record.hyper_parameters.get("threshold")
    threshold = float(value) if isinstance(value, int | float) else None
    near = merge_effects.candidates(run, merge)
    parts = merge_effects.merge_parts(run, model, merge)
    later = merge_effects.influence_over_steps(run, merge)
    where = of_run(run).at(f"layer {merge.layer}, head {merge.head}, step {merge.step}")
    first = figures.candidate_similarity(near, merge.source, texts, threshold, theme)
    second = figures.parts_of_merge(parts, theme)
    third = figures.influence_over_steps(later, theme)
    claim = keeps(gather(sources, INFLUENCE, [run]))
    caption = figures.caption_influence_over_steps(later)
    return (
        Drawn("candidates", first, near, figures.caption_candidate_similarity(near, merge.source, threshold), where),
        Drawn("votes and scores", second, parts, figures.caption_parts_of_merge(parts), where),
        Drawn("influence", third, later, caption, where, claim),
    )


def merging_runs(sources: Sources) -> list[Run]:
    """The comparison's runs with merges: KeepKV's first (the current one, then the one with the paper's settings)."""
    seen = list(dict.fromkeys([*sources.runs, *([sources.run] if sources.run else [])]))
    merged = [run for run in seen if run.record.level == "full" and run.steps["merged"].sum() > 0]
    return sorted(
        merged, key=lambda run: (run.record.method != "keepkv", run is not sources.run, bool(run.record.departures))
    )


DRAWINGS = {"fig-1": draw_rules, "fig-3": draw_workflow}
