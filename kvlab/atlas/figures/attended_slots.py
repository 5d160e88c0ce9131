"""Attention map of one head, and attended distance by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.lines import Line, add_lines
from kvlab.figures.base.palette import HUES, SEQUENTIAL, Theme, pick
from kvlab.figures.base.template import colour_bar, finish
from kvlab.figures.base.words import percent

LINES = (
    Line("share", "attended distance (share of the text, without sinks)", "blue", "solid", "circle"),
    Line("sink_mass", "attention on the first 4 tokens", "orange", "dash", "square"),
    Line("local_mass", "attention on the last 32 tokens", "green", "dot", "diamond"),
)


def attention_map(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of each step's query (rows) on the tokens (columns), from `attended_distance.attention_map`.

    On a log scale, because most tokens get next to nothing.
    """
    shown = np.log10(np.maximum(frame.to_numpy(np.float32), 1e-5))
    heat = go.Heatmap(
        z=shown, x=frame.columns.to_numpy(), y=frame.index.to_numpy(), zmin=-5, zmax=0, colorscale=SEQUENTIAL[theme],
        colorbar=colour_bar("attention", theme, tickvals=[-5, -4, -3, -2, -1, 0],
                            ticktext=["0.00001 or less", "0.0001", "0.001", "0.01", "0.1", "1"]),
        hovertemplate="step %{y}, from token %{x}: 10^%{z:.2f}<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(heat)
    finish(figure, title="Attention of each query", x="token (position)", y="step", theme=theme, legend=False)
    return figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False)


def read_attention_map(frame: pd.DataFrame) -> str:
    """Concentration of the rows."""
    values = np.sort(frame.to_numpy(float), axis=1)[:, ::-1]
    values = values[values.sum(axis=1) > 0]
    if not len(values):
        return "There is no attention here."
    top = values[:, : max(1, values.shape[1] // 20)].sum(axis=1) / values.sum(axis=1)
    share = percent(top.mean())
    return f"Over {len(values)} queries, the most attended twentieth of the text gets {share} of the attention."


def distance_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Mean attended distance, sink mass and local mass of each layer, from `attended_distance.layer_means`."""
    figure = go.Figure()
    figure.add_scatter(
        x=[*frame["layer"], *frame["layer"][::-1]], y=[*frame["highest"], *frame["lowest"][::-1]], fill="toself",
        mode="lines", line={"width": 0}, opacity=0.25, fillcolor=pick(HUES["blue"], theme),
        name="range over the layer's heads", hoverinfo="skip",
    )  # fmt: skip
    add_lines(figure, frame["layer"], frame, LINES, theme, "layer %{x}: {name} %{y:.3f}", size=8)
    finish(figure, title="Attended distance by layer", x="layer", y="share", theme=theme)
    return figure.update_yaxes(rangemode="tozero").update_xaxes(dtick=1 if len(frame) <= 24 else None)


def read_distance_by_layer(frame: pd.DataFrame, queries: int, most: int) -> str:
    """First and last layer; at most `most` of the recorded `queries` were sampled."""
    first, last = frame.iloc[0], frame.iloc[-1]
    return (
        f"Means over heads and steps: layer {first['layer']:.0f} attends {first['distance']:,.0f} tokens back, layer "
        f"{last['layer']:.0f} "
        f"{last['distance']:,.0f}; the sinks get {percent(first['sink_mass'])} and {percent(last['sink_mass'])}, the "
        f"last 32 tokens {percent(first['local_mass'])} and {percent(last['local_mass'])}."
        + (f" Sampled: {most:,} of {queries:,} queries, evenly chosen." if queries > most else "")
    )
