"""Exhibits drawn from recorded runs: how a global cut distributes slots, and similarity of neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.claims.head_shares import CUT, EVIDENCE, invariant, later, shares
from kvlab.atlas.evidence import gather
from kvlab.atlas.exhibit import Choice, Drawn, Needs
from kvlab.atlas.kvmerger.similarity import draw_maps
from kvlab.atlas.measurements import comparison
from kvlab.common.formatting import prompts
from kvlab.figures.base.palette import SEQUENTIAL, Theme
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import percent
from kvlab.results.provenance import of_run
from kvlab.results.sources import Sources
from kvlab.trace.reader import Run


def draw_shares(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Mean share of every head, with both claims."""
    run = next((one for one in (sources.run, *sources.runs) if one is not None and len(_of(one))), None)
    if run is None:
        return Needs(f"No run of {CUT} in view.", comparison(sources, [CUT, "full"]))
    rows = gather(sources, EVIDENCE, [run])
    frame = rows.groupby(["layer", "head"], as_index=False)["share"].mean()
    table = frame.pivot(index="layer", columns="head", values="share")
    heat = go.Heatmap(
        z=table.to_numpy(np.float32), x=[f"head {head}" for head in table],
        y=[f"layer {layer}" for layer in table.index], colorscale=SEQUENTIAL[theme],
        hovertemplate="%{y}, %{x}: %{z:.1%}<extra></extra>", xgap=2, ygap=2,
    )  # fmt: skip
    title = "Share of the model's slots by head"
    figure = finish(go.Figure(heat), title=title, x="KV head", y="layer", theme=theme, legend=False)
    top = frame.loc[frame["share"].idxmax()]
    reading = (
        f"Head {int(top['head'])} of layer {int(top['layer'])} has the most slots, {percent(top['share'])}; mean "
        f"over {prompts(rows['prompt'].nunique())}."
    )
    where = of_run(run)
    by_layer = frame.groupby("layer", as_index=False)["share"].sum()
    bars = go.Figure(go.Bar(x=[f"layer {layer}" for layer in by_layer["layer"]], y=by_layer["share"]))
    second = finish(bars, title="Share of the slots by layer", x="layer", y="share", theme=theme, legend=False)
    told = f"Shares of the layers: {', '.join(percent(share) for share in by_layer['share'])}."
    return (
        Drawn("heads", figure, frame, reading, where, invariant(rows)),
        Drawn("layers", second, by_layer, told, where, later(rows)),
    )


def draw_neighbours(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """KVMerger's figure 2, judged for AsymKV."""
    drawn = draw_maps(sources, choice, theme)
    if isinstance(drawn, Needs):
        return drawn
    maps = replace(drawn[0], claim=drawn[0].claim and replace(drawn[0].claim, judged_at="kvmerger/fig-2"))
    return (maps, *(one for one in drawn[1:] if one.claim is None))


def _of(run: Run) -> pd.DataFrame:
    return shares(run) if run.record.method == CUT else pd.DataFrame()


DRAWINGS = {"fig-1": draw_shares, "fig-2": draw_neighbours}
