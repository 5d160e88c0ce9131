"""Attention lost to dropped tokens: by layer and step, over steps, and against budgets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from kvlab.common.formatting import range_words
from kvlab.common.intervals import correlation_interval
from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import Line, add_lines, add_points
from kvlab.views.base.palette import HUES, LOSS, Theme, pick
from kvlab.views.base.template import axis_height, colour_bar, finish, layer_axis
from kvlab.views.base.words import number, percent, plural, two_digits, visible

MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "pentagon")
SEEN: dict[Theme, tuple[float, float]] = {"light": (0.0, 0.72), "dark": (0.35, 1.0)}  # of Viridis on the ground
TALLEST = 520  # pixels of the axis of layers


def regret_map(frame: pd.DataFrame, step: int | None = None, theme: Theme = "light") -> go.Figure:
    """Mean regret by layer (rows) and step (columns), from `regret.regret_map`; a line marks `step`."""
    values = frame.to_numpy(np.float32)
    heat = go.Heatmap(
        z=values,
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        colorscale=LOSS[theme],
        zmin=0,
        zmax=float(np.nanmax(values)) or 1.0 if np.isfinite(values).any() else 1.0,
        colorbar=colour_bar("regret (share of attention)", theme, tickformat=".3~p"),
        hovertemplate="layer %{y}, step %{x}<br>regret %{z:.1%}<extra></extra>",
    )
    figure = go.Figure(heat)
    if step is not None and len(frame.columns) > 1:
        figure.add_vline(x=step, line={"width": 1.5, "dash": "dot", "color": pick(HUES["ink"], theme)})
    layers = frame.index.tolist()
    pixels = min(TALLEST, axis_height(layers))
    title = "Regret by layer and step"
    height = pixels + 120
    finish(figure, title=title, x="step", y="layer", theme=theme, height=height, legend=False)
    return figure.update_yaxes(showgrid=False, **layer_axis(layers, pixels)).update_xaxes(showgrid=False)


@with_simple(simple.regret_map)
def caption_regret_map(frame: pd.DataFrame) -> str:
    """The peak."""
    values = frame.to_numpy(np.float64)
    if not np.isfinite(values).any():
        return "Regret was not measured (0 steps)."
    if not np.nanmax(values):
        return f"Regret is 0 in all {plural(len(frame), 'layer')}."
    row, column = np.unravel_index(np.nanargmax(values), values.shape)
    return (
        f"Regret peaks in layer {frame.index[row]} at step {frame.columns[column]}: {percent(values[row, column])} of "
        f"the attention would go to dropped tokens; the mean is {percent(float(np.nanmean(values)))}."
    )


def regret_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Mean and largest regret at every step, from `analysis.attention.regret.regret_over_steps`."""
    marker = "circle" if len(frame) < 4 else ""
    lines = (
        Line("largest", "largest of any head", "red", "dot", marker),
        Line("mean", "mean over layers and heads", "grey", "solid", marker),
    )
    words = [visible(text) if text else "–" for text in frame["text"]]
    hover = "step %{x}, predicting %{customdata}<br>{name} %{y:.1%}"
    figure = add_lines(go.Figure(), frame["step"], frame, lines, theme, hover, customdata=words)
    finish(figure, title="Regret at each step", x="step", y="regret (share of attention)", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@with_simple(simple.regret_over_steps)
def caption_regret_over_steps(frame: pd.DataFrame) -> str:
    """The step with the largest mean regret."""
    if not frame["mean"].notna().any():
        return "Regret was not measured (0 steps)."
    top = frame.loc[frame["mean"].idxmax()]
    kl = "" if pd.isna(top["kl"]) else f", where the prediction is off by {number(float(top['kl']))} nats"
    token = f" (predicting “{top['text'].strip()}”{kl})" if top["text"].strip() else ""
    return f"The worst step is {int(top['step'])}{token}: mean regret over heads {percent(top['mean'])}."


def budget_against_regret(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots of each head against its regret, from `budget_and_regret`; one marker per layer."""
    layers = sorted(frame["layer"].unique())
    low, high = SEEN[theme]
    places = [low + (high - low) * index / max(1, len(layers) - 1) for index in range(len(layers))]
    colours = sample_colorscale("Viridis", places)
    figure = go.Figure()
    for index, layer in enumerate(layers):
        part = frame[frame["layer"] == layer]
        name = f"layer {layer}"
        hover = f"{name}, head %{{customdata[0]}}<br>%{{x:,}} slots, regret %{{y:.4f}}"
        hover += "<br>output error %{customdata[1]:.3g}"
        add_points(
            figure,
            part["live_slots"],
            part["regret"],
            name,
            colours[index],
            hover,
            size=10,
            marker_symbol=MARKERS[index % len(MARKERS)],
            customdata=part[["head", "output_error"]],
        )
    title = "Budget against regret by head"
    y = "mean regret (share of attention)"
    finish(figure, title=title, x="slots", y=y, theme=theme, legend=len(layers) <= 16)
    return figure.update_yaxes(tickformat=".3~p")


@with_simple(simple.budget_against_regret)
def caption_budget_against_regret(frame: pd.DataFrame, correlation: float) -> str:
    """The rank correlation with its interval, were the heads independent, and what can be told from it."""
    spread = frame["live_slots"].max() - frame["live_slots"].min()
    if not frame["regret"].notna().any():
        return f"Regret was not measured in {plural(len(frame), 'head')}."
    if not np.isfinite(correlation):
        what = "slots do not differ" if not spread else "regret does not differ"
        return f"Over {plural(len(frame), 'head')} {what}, so there is no correlation."
    low, high = correlation_interval(correlation, len(frame))
    if low <= 0 <= high:
        verdict = "whether slots and loss are related cannot be told from so few"
    elif correlation < 0:
        verdict = "heads with more slots lose less"
    else:
        verdict = "heads with more slots still lose more: they need at least that many"
    told = range_words(correlation, low, high, two_digits, f"n = {len(frame):,} heads of one prompt")
    return f"Rank correlation of slots and regret: {told}; {verdict}."
