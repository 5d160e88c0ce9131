"""ZSMerge's figures 1 and 2: three ways to shrink a cache, and what its slots hold as the text grows."""

from __future__ import annotations

import pandas as pd

from kvlab.analysis.comparison.compare import unique_labels
from kvlab.analysis.lineage.mosaic import mosaic, state_counts
from kvlab.atlas.analysis.regions import regions_over_steps, slots_by_step
from kvlab.atlas.claims import zsmerge as claims
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import fates, regions
from kvlab.atlas.measurements import comparison
from kvlab.atlas.one_head import head_of, recorded
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import joined, of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run

TOKEN_BLOCKS = 192
PANELS = (
    "These are the paper's panels A (eviction), B (trained residuals: what LESS evicts lives on in a state beside the "
    "slots) and C (ZSMerge)."
)
WITHOUT_B = (
    "These are the paper's panels A (eviction) and C (ZSMerge); for B, trained residuals, add less to the comparison."
)


def draw_strategies(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: the same tokens under an evicting method, under LESS where it is there, and under ZSMerge."""
    evicting, trained, merging = (recorded(sources, *names) for names in (claims.EVICTING, ("less",), ("zsmerge",)))
    if isinstance(evicting, Needs) or isinstance(merging, Needs):
        why = "A comparison of an evicting method with ZSMerge is needed."
        return Needs(why, comparison(sources, ("h2o", "less", "zsmerge")))
    runs = [run for run in (evicting, trained, merging) if isinstance(run, Run)]
    lineages = {name: head_of(run, choice).lineage for name, run in zip(unique_labels(runs), runs, strict=True)}
    mosaics = {name: mosaic(lineage, TOKEN_BLOCKS) for name, lineage in lineages.items()}
    counts = {name: state_counts(lineage) for name, lineage in lineages.items()}
    frame = pd.concat([table.assign(run=name).reset_index() for name, table in mosaics.items()], ignore_index=True)
    frame.columns = frame.columns.map(str)
    reading = f"{fates.read_fates(mosaics, counts)} {PANELS if len(runs) == 3 else WITHOUT_B}"
    where = joined(*map(of_run, runs))
    pair = [evicting, merging]
    claim = claims.closer(gather(sources, claims.DRIFT, pair), *(run.record.label for run in pair))
    return (Drawn("strategies", fates.fates(mosaics, theme), frame, reading, where, claim),)


def draw_contents(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: the slots of one head over six steps, and its regions over all steps."""
    run = recorded(sources, "zsmerge")
    if isinstance(run, Needs):
        return run
    head = head_of(run, choice)
    slots, counts = slots_by_step(head.lineage, choice.step), regions_over_steps(head.lineage)
    where = of_run(run)
    return (
        Drawn(
            "contents",
            regions.cache_contents(slots, head.texts, theme),
            slots,
            regions.read_cache_contents(slots),
            where,
            claims.bounded(gather(sources, claims.FILLED, [run])),
        ),
        Drawn(
            "regions", regions.regions_over_steps(counts, theme), counts, regions.read_regions_over_steps(counts), where
        ),
    )


DRAWINGS = {"fig-1": draw_strategies, "fig-2": draw_contents}
