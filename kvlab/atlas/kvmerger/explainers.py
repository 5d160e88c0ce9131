"""Figures 1 and 4: the schematics, drawn from a dozen tokens of a recorded run."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.merging_walkthrough import Walkthrough, represented, walkthrough
from kvlab.atlas.claims.merging_sets import EVIDENCE, keeps_more, pivot_leads
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import merging_steps as figures
from kvlab.atlas.kvmerger.recordings import BUDGETS, METHODS, eviction_sentence, run_with_keys
from kvlab.atlas.measurements import comparison
from kvlab.common.errors import UserError
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run


def draw_three_ways(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: quantisation, eviction and merging of the same keys."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    figure = figures.three_ways(walk, _texts(run), theme)
    kept = ~np.isnan(figures.evicted(walk)).all(axis=1)
    off = np.linalg.norm(represented(walk) - walk.keys, axis=1) / np.linalg.norm(walk.keys, axis=1)
    frame = _named(run, walk).assign(kept_by_eviction=kept, key_error_of_merging=off)
    return (
        Drawn(
            "three ways",
            figure,
            frame,
            figures.read_three_ways(walk),
            of_run(run),
            keeps_more(gather(sources, EVIDENCE)),
        ),
    )


def draw_pipeline(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: similarity, sets, pivots, weights and merged slots, as frames."""
    found = _window(sources, choice)
    if isinstance(found, Needs):
        return found
    run, walk = found
    figure = figures.merging_pipeline(walk, _texts(run), theme)
    reading = f"{figures.read_merging_pipeline(walk)} {eviction_sentence(run)}".strip()
    return (Drawn("pipeline", figure, _named(run, walk), reading, of_run(run), pivot_leads(gather(sources, EVIDENCE))),)


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
