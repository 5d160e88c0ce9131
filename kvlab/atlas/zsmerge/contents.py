"""ZSMerge, figures 1 and 2, with the claims: merging drifts less than eviction, and slots never exceed their budget."""

from __future__ import annotations

import pandas as pd

from kvlab.atlas.analysis.regions import regions_over_steps, slots_by_step
from kvlab.atlas.evidence import Evidence, basis_of, gather, interval_of, mean_text
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import cache_contents as figures
from kvlab.atlas.measurements import comparison, head_of, recorded_run
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import join_sources, of_run
from kvlab.views.base.words import number, percent
from kvlab.views.frames.compare import headline, unique_labels
from kvlab.views.frames.lineage import mosaic, state_counts

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


def fill_by_head(run: Run) -> pd.DataFrame:
    """One row per head: `steps`, steps `over` the budget, slots `evicted` and `merged`, and the largest `fill`."""
    steps = run.steps
    table = steps.assign(
        over=(steps["live_slots"] > steps["budget_slots"]).astype(int),
        fill=steps["live_slots"] / steps["budget_slots"],
    )
    groups = table.groupby(["layer", "head"])
    sums = groups[["over", "evicted", "merged"]].sum()
    return sums.assign(steps=groups.size(), fill=groups["fill"].max()).reset_index()


DRIFT = Evidence("drift", drift, (*EVICTING, "zsmerge"))
FILLED = Evidence("filled", fill_by_head, ("zsmerge",))


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


def judge_budget(rows: pd.DataFrame) -> Claim:
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


PANELS = (
    "These are the paper's panels A (eviction), B (trained residuals: LESS keeps evicted tokens in an extra state) "
    "and C (ZSMerge)."
)
WITHOUT_B = (
    "These are the paper's panels A (eviction) and C (ZSMerge); for B, trained residuals, add less to the comparison."
)


def draw_strategies(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: the same tokens under an evicting method, under LESS if present, and under ZSMerge."""
    evicting, trained, merging = (recorded_run(sources, *names) for names in (EVICTING, ("less",), ("zsmerge",)))
    if isinstance(evicting, Needs) or isinstance(merging, Needs):
        why = "A comparison of an evicting method with ZSMerge is needed."
        return Needs(why, comparison(sources, ("h2o", "less", "zsmerge")))
    runs = [run for run in (evicting, trained, merging) if isinstance(run, Run)]
    lineages = {name: head_of(run, choice).lineage for name, run in zip(unique_labels(runs), runs, strict=True)}
    mosaics = {name: mosaic(lineage) for name, lineage in lineages.items()}
    counts = {name: state_counts(lineage) for name, lineage in lineages.items()}
    frame = pd.concat([table.assign(run=name).reset_index() for name, table in mosaics.items()], ignore_index=True)
    frame.columns = frame.columns.map(str)
    caption = figures.caption_fates(mosaics, counts).within(after=PANELS if len(runs) == 3 else WITHOUT_B)
    where = join_sources(*map(of_run, runs))
    pair = [evicting, merging]
    claim = closer(gather(sources, DRIFT, pair), *(run.record.label for run in pair))
    return (Drawn("strategies", figures.fates(mosaics, theme), frame, caption, where, claim),)


def draw_contents(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: the slots of one head over six steps, and its regions over all steps."""
    run = recorded_run(sources, "zsmerge")
    if isinstance(run, Needs):
        return run
    head = head_of(run, choice)
    slots = slots_by_step(head.lineage, choice.step)
    counts = regions_over_steps(head.lineage)
    where = of_run(run)
    first = figures.cache_contents(slots, head.texts, theme)
    second = figures.regions_over_steps(counts, theme)
    claim = judge_budget(gather(sources, FILLED, [run]))
    return (
        Drawn("contents", first, slots, figures.caption_cache_contents(slots), where, claim),
        Drawn("regions", second, counts, figures.caption_regions_over_steps(counts), where),
    )


DRAWINGS = {"fig-1": draw_strategies, "fig-2": draw_contents}
