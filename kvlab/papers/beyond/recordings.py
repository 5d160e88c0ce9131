"""Exhibits drawn from recorded runs: how a global cut distributes slots over heads, and similarity of neighbours."""

from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import prompts
from kvlab.common.intervals import Interval, pairs_interval
from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.kvmerger.merging_sets import persistence
from kvlab.papers.kvmerger.similarity import draw_maps
from kvlab.papers.pyramid_pool.recordings import GROWS
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run
from kvlab.views.base import SEQUENTIAL, Theme, contrast, finish, of_run, percent, two_digits

CUT = "kvzip"
INVARIANT = "DuoAttention, Attention Matching: where a model wants its slots hardly depends on the text."
LATER = "Attention Matching: later layers want more slots than early ones."
SAME = Threshold(0.8, "about where four pairs of heads of five are in the same order in two prompts")


def shares(run: Run) -> pd.DataFrame:
    """One row per head: its `share` of the slots kept of the prompt."""
    steps = run.steps
    if steps.empty or run.record.hyper_parameters.get("level", "pair") != "pair":
        return pd.DataFrame()
    first = steps[steps["step"] == steps["step"].min()][["layer", "head", "live_slots"]]
    return first.assign(share=first["live_slots"] / first["live_slots"].sum()).drop(columns="live_slots")


EVIDENCE = Evidence("head-shares", shares, (CUT,))


def invariant(rows: pd.DataFrame) -> Claim:
    """Rank correlation of the heads' shares in two prompts, over all pairs of prompts."""
    basis = basis_of(rows)
    table = rows.groupby(["layer", "head", "prompt"])["share"].mean().unstack("prompt") if len(rows) else pd.DataFrame()
    found = persistence(table) if basis.prompts > 1 else np.zeros((0, 0))
    if len(found) < 2 or np.isnan(found).any():
        return Claim(INVARIANT, OPEN, f"{prompts(basis.prompts).capitalize()}: it takes 2.", basis, threshold=SAME)
    pairs = pairs_interval(found)
    over = Interval(pairs.mean, pairs.low, pairs.high, basis.prompts, pairs.samples)
    return judge(
        INVARIANT, over, SAME, basis, f"Two prompts' shares have a rank correlation of {mean_text(over, two_digits)}."
    )


def layer_order_correlation(rows: pd.DataFrame) -> Claim:
    """Rank correlation of layer index and share, prompt by prompt."""
    by_layer = rows.groupby(["prompt", "layer"])["share"].sum().unstack("layer") if len(rows) else pd.DataFrame()
    trend = [float(line.rank().corr(pd.Series(line.index, line.index).rank())) for _, line in by_layer.iterrows()]
    found = interval_of(trend)
    most = "" if by_layer.empty else f" Layer {by_layer.mean().idxmax()} has most, {percent(by_layer.mean().max())}."
    finding = f"A layer's place and its share have a rank correlation of {mean_text(found, two_digits)}.{most}"
    return judge(LATER, found, GROWS, basis_of(rows), finding)


@draws("beyond/fig-1")
def draw_shares(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Mean share of every head, with both claims."""
    cut = (one for one in (sources.run, *sources.runs) if one is not None and one.record.method == CUT)
    run = next((one for one in cut if len(shares(one))), None)
    if run is None:
        return Needs(f"No run of {CUT} in view.", comparison(sources, [CUT, "full"]))
    rows = gather(sources, EVIDENCE, [run])
    frame = rows.groupby(["layer", "head"], as_index=False)["share"].mean()
    table = frame.pivot(index="layer", columns="head", values="share")
    heat = go.Heatmap(
        z=table.to_numpy(np.float32),
        x=[f"head {head}" for head in table],
        y=[f"layer {layer}" for layer in table.index],
        colorscale=SEQUENTIAL[theme],
        hovertemplate="%{y}, %{x}: %{z:.1%}<extra></extra>",
        xgap=2,
        ygap=2,
    )
    title = "Share of the model's slots by head"
    figure = finish(go.Figure(heat), title=title, x="KV head", y="layer", theme=theme, legend=False)
    places = [f"layer {int(line.layer)} head {int(line.head)}" for line in frame.itertuples()]
    caption = contrast(
        frame.assign(place=places).set_index("place")["share"],
        "Most slots go to {most}, fewest to {least}.",
        "Every head has equally many slots.",
    )
    where = of_run(run)
    by_layer = frame.groupby("layer", as_index=False)["share"].sum()
    bars = go.Figure(go.Bar(x=[f"layer {layer}" for layer in by_layer["layer"]], y=by_layer["share"]))
    second = finish(bars, title="Share of the slots by layer", x="layer", y="share", theme=theme, legend=False)
    of_layers = contrast(
        by_layer.assign(layer=by_layer["layer"].astype(int)).set_index("layer")["share"],
        "Most slots go to layer {most}, fewest to layer {least}.",
        "Every layer has equally many slots.",
    )
    return (
        Drawn("heads", figure, frame, caption, where, invariant(rows)),
        Drawn(
            "layers",
            second,
            by_layer,
            of_layers,
            where,
            layer_order_correlation(rows),
        ),
    )


@draws("beyond/fig-2")
def draw_neighbours(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """KVMerger's figure 2, judged for AsymKV."""
    drawn = draw_maps(sources, choice, theme)
    if isinstance(drawn, Needs):
        return drawn
    maps = replace(drawn[0], claim=drawn[0].claim and replace(drawn[0].claim, judged_at="kvmerger/fig-2"))
    return (maps, *(one for one in drawn[1:] if one.claim is None))
