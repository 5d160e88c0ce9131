"""PyramidPool's figures 4 and 5: repeated pooling of windows, and attended distance by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import Lineage
from kvlab.analysis.lineage.tables import event_steps
from kvlab.atlas.analysis.attended_distance import MOST_ROWS, attention_map, by_layer, layer_means
from kvlab.atlas.analysis.pyramid import MOST_SLOTS, spans
from kvlab.atlas.claims import pyramid as claims
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.figures import attended_slots, pyramid
from kvlab.atlas.measurements import comparison
from kvlab.atlas.one_head import head_of, recorded
from kvlab.atlas.pyramid_pool.budgets import PYRAMIDS
from kvlab.figures.base.palette import Theme
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run

MOST_FRAMES = 16
MERGING = ("pyramid-pool:pooling=mean",)


def draw_windows(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 4: the text span of each slot of one head over the steps."""
    run = _pooled(sources) or recorded(sources, *PYRAMIDS)
    if isinstance(run, Needs):
        return Needs(run.sentence, comparison(sources, MERGING))
    pooling_kind = run.record.hyper_parameters.get("pooling")
    if pooling_kind in claims.KEEPS_ONE:
        why = (
            f"This run's pooling ({pooling_kind}) keeps one token of each window and evicts the others: nothing merges."
        )
        return Needs(why, comparison(sources, MERGING))
    head = head_of(run, choice)
    window = run.record.hyper_parameters.get("window", 4)
    tables = {
        step: spans(head.lineage, step, window if isinstance(window, int) else 4) for step in _steps(head.lineage)
    }
    shown = {step: _most_pooled(table) for step, table in tables.items()}
    frame = pd.concat([table.assign(step=step) for step, table in tables.items()], ignore_index=True)
    claim = claims.older(gather(sources, claims.WINDOWS, [run]))
    reading = pyramid.read_windows(tables, MOST_SLOTS, len(_every_step(head.lineage)))
    figure = pyramid.windows(shown, theme)
    return (Drawn("windows", figure, frame, reading, of_run(run), claim),)


def _pooled(sources: Sources) -> Run | None:
    """A run that merges its windows, if `recorded` would choose one that keeps single tokens."""
    seen = [run for run in (sources.run, *sources.runs) if run is not None and run.record.method in PYRAMIDS]
    merging = [run for run in seen if run.record.hyper_parameters.get("pooling") not in claims.KEEPS_ONE]
    return next((run for run in merging if run.record.level == "full" and not run.steps.empty), None)


def _steps(lineage: Lineage) -> list[int]:
    """The first and last step and those with departures, evenly thinned to `MOST_FRAMES`."""
    steps = _every_step(lineage)
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(MOST_FRAMES, len(steps))).round().astype(int))
    return steps[chosen].tolist()


def _every_step(lineage: Lineage) -> np.ndarray:
    return np.unique([lineage.steps[0], *event_steps(lineage), lineage.steps[-1]])


def _most_pooled(table: pd.DataFrame) -> pd.DataFrame:
    order = table["tokens"].sort_values(ascending=False, kind="stable").index[:MOST_SLOTS]
    return table.loc[np.sort(order)]


def draw_attention(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 5: the attention map of one head, and the attended distance of every layer."""
    run = next((run for run in (sources.run, *sources.runs) if run is not None and run.has_arrays), None)
    if run is None:
        return Needs("No run recorded its attention rows.", comparison(sources, PYRAMIDS[:1]))
    rows, layers = attention_map(run, choice.layer, choice.head), layer_means(by_layer(run))
    flat = rows.rename(columns=str).reset_index()
    where = replace(of_run(run), note="the full cache's attention, kept alongside")
    return (
        Drawn("map", attended_slots.attention_map(rows, theme), flat, attended_slots.read_attention_map(rows), where),
        Drawn(
            "layers",
            attended_slots.distance_by_layer(layers, theme),
            layers,
            attended_slots.read_distance_by_layer(layers, len(rows), MOST_ROWS),
            where,
            claims.localises(gather(sources, claims.DISTANCES)),
        ),
    )


DRAWINGS = {"fig-4": draw_windows, "fig-5": draw_attention}
