"""Attention: a map, distance by layer, concentration, returning tokens, variance along the text, prediction errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import head_map
from kvlab.views.base.lines import Line, add_band, add_line, add_lines, add_points
from kvlab.views.base.palette import HUES, LOSS, SEQUENTIAL, SURFACES, Theme, mix, pick
from kvlab.views.base.template import QUIET, colour_bar, finish, log_axis
from kvlab.views.base.words import number, percent, plural, shown_of, visible

LINES = (
    Line("share", "attended distance (share of the text, without sinks)", "blue", "solid", "circle"),
    Line("sink_mass", "attention on the first 4 tokens", "orange", "dash", "square"),
    Line("local_mass", "attention on the last 32 tokens", "green", "dot", "diamond"),
)


def attention_map(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of each step's query (rows) on the tokens (columns), from `pyramid.attention_map`.

    On a log scale, because most tokens get next to nothing.
    """
    shown = np.log10(np.maximum(frame.to_numpy(np.float32), 1e-5))
    heat = go.Heatmap(
        z=shown,
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        zmin=-5,
        zmax=0,
        colorscale=SEQUENTIAL[theme],
        colorbar=colour_bar(
            "attention",
            theme,
            tickvals=[-5, -4, -3, -2, -1, 0],
            ticktext=["0.00001 or less", "0.0001", "0.001", "0.01", "0.1", "1"],
        ),
        hovertemplate="step %{y}, from token %{x}: 10^%{z:.2f}<extra></extra>",
    )
    figure = go.Figure(heat)
    finish(figure, title="Attention of each query", x="token (position)", y="step", theme=theme, legend=False)
    return figure.update_yaxes(autorange="reversed", showgrid=False).update_xaxes(showgrid=False)


@with_simple(simple.attention_map)
def caption_attention_map(frame: pd.DataFrame) -> str:
    """Concentration of the rows."""
    values = np.sort(frame.to_numpy(float), axis=1)[:, ::-1]
    values = values[values.sum(axis=1) > 0]
    if not len(values):
        return "There is no attention here."
    top = values[:, : max(1, values.shape[1] // 20)].sum(axis=1) / values.sum(axis=1)
    share = percent(top.mean())
    return f"Over {len(values)} queries, the most attended twentieth of the text gets {share} of the attention."


def distance_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Mean attended distance, sink mass and local mass of each layer, from `pyramid.layer_means`."""
    figure = go.Figure()
    figure.add_scatter(
        x=[*frame["layer"], *frame["layer"][::-1]],
        y=[*frame["highest"], *frame["lowest"][::-1]],
        fill="toself",
        mode="lines",
        line={"width": 0},
        opacity=0.25,
        fillcolor=pick(HUES["blue"], theme),
        name="range over the layer's heads",
        hoverinfo="skip",
    )
    add_lines(figure, frame["layer"], frame, LINES, theme, "layer %{x}: {name} %{y:.3f}", size=8)
    finish(figure, title="Attended distance by layer", x="layer", y="share", theme=theme)
    return figure.update_yaxes(rangemode="tozero").update_xaxes(dtick=1 if len(frame) <= 24 else None)


@with_simple(simple.distance_by_layer)
def caption_distance_by_layer(frame: pd.DataFrame, queries: int, most: int) -> str:
    """First and last layer; at most `most` of the recorded `queries` were sampled."""
    first = frame.iloc[0]
    last = frame.iloc[-1]
    return (
        f"Means over heads and steps: layer {first['layer']:.0f} attends {first['distance']:,.0f} tokens back, layer "
        f"{last['layer']:.0f} "
        f"{last['distance']:,.0f}; the sinks get {percent(first['sink_mass'])} and {percent(last['sink_mass'])}, the "
        f"last 32 tokens {percent(first['local_mass'])} and {percent(last['local_mass'])}."
        + (f" Sampled: {most:,} of {queries:,} queries, evenly chosen." if queries > most else "")
    )


MAX_POINTS = 1500
LOOKS = (
    ("blue", "solid", "circle"),
    ("orange", "dash", "diamond"),
    ("green", "dot", "square"),
    ("grey", "dashdot", "x"),
)


def cumulative_mass(frame: pd.DataFrame, layer: int, head: int, top: float, theme: Theme = "light") -> go.Figure:
    """Attention held by the most attended tokens against their share of all, from `concentration_of_heads`."""
    spread = frame.groupby("share")["mass"].quantile([0.1, 0.5, 0.9]).unstack()
    own = frame[(frame["layer"] == layer) & (frame["head"] == head)]
    band = mix(pick(HUES["blue"], theme), SURFACES[theme], 0.75)
    figure = go.Figure()
    add_band(figure, spread.index, spread[0.1], spread[0.9], band, "8 in 10 heads")
    for x, y, name, (hue, dash, _) in (
        (spread.index, spread[0.5], "median head", LOOKS[0]),
        (own["share"], own["mass"], f"layer {layer}, head {head}", LOOKS[1]),
        ([0, 1], [0, 1], "uniform", LOOKS[3]),
    ):
        hover = f"{name}: the top %{{x:.0%}} of the tokens hold %{{y:.1%}}"
        add_line(figure, x, y, name, pick(HUES[hue], theme), dash, hover)
    figure.add_vline(x=top, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(
        figure,
        title="Attention held by the most attended tokens",
        x="share of the tokens kept",
        y="share of attention they hold",
        theme=theme,
        height=400,
    )
    return figure.update_xaxes(tickformat=".0%", range=[0, 1]).update_yaxes(tickformat=".0%", range=[0, 1.02])


@with_simple(simple.cumulative_mass)
def caption_cumulative_mass(frame: pd.DataFrame, layer: int, head: int, top: float) -> str:
    """The chosen head and the extremes at the share kept."""
    at = frame[np.isclose(frame["share"], top)].set_index(["layer", "head"])["mass"]
    area = frame.groupby(["layer", "head"])[["share", "mass"]].apply(lambda t: np.trapezoid(t["mass"], t["share"]))
    own = f"; layer {layer}, head {head}: {percent(at[layer, head])}" if (layer, head) in at.index else ""
    return (
        f"The top {percent(top)} of the tokens hold {percent(at.median())} of the attention in the median of "
        f"{plural(len(at), 'head')}, "
        f"{percent(at.min())} in the flattest and {percent(at.max())} in the sharpest{own}. "
        f"Mean area under the curve {number(area.mean())} (0.5 if uniform)."
    )


def returning_over_steps(frame: pd.DataFrame, top: float, theme: Theme = "light") -> go.Figure:
    """Share of evictable prompt tokens among the most attended by step, mean over heads; dashed: ever so far."""
    figure = go.Figure()
    for (kind, group), (hue, _, marker) in zip(frame.groupby("kind", sort=False), LOOKS, strict=False):
        means = group.groupby("step")[["share", "ever"]].mean()
        colour = pick(HUES[hue], theme)
        for column, dash, what in (("share", "solid", "at this step"), ("ever", "dash", "at any step so far")):
            name = f"{kind}, {what}"
            hover = f"{kind}<br>step %{{x}}: %{{y:.1%}} {what}"
            add_line(
                figure, means.index, means[column], name, colour, dash, hover, marker=marker, marker_maxdisplayed=8
            )
    line = {"color": QUIET[theme], "dash": "dot", "width": 1.2}
    figure.add_hline(y=top, line=line, annotation_text="chance", annotation_position="top left")
    finish(
        figure,
        title=f"Evicted prompt tokens that return to the top {percent(top)}",
        x="decode step",
        y="share of the evicted tokens",
        theme=theme,
        height=440,
    )
    figure.update_layout(margin={"t": 128}, legend={"entrywidth": 0.47, "entrywidthmode": "fraction"})
    return figure.update_yaxes(tickformat=".3~p", rangemode="tozero")


@with_simple(simple.returning_over_steps)
def caption_returning_over_steps(frame: pd.DataFrame) -> str:
    """Mean and final shares of each ranking."""
    parts = []
    for kind, group in frame.groupby("kind", sort=False):
        last = group[group["step"] == group["step"].max()]["ever"].mean()
        mean = group["share"].mean()
        mass = group["mass"].mean()
        parts.append(
            f"{kind}: {percent(mean)} per step, {percent(last)} at least once, {percent(mass)} of the attention"
        )
    heads = len(frame[["layer", "head"]].drop_duplicates())
    return f"Mean of {plural(heads, 'head')}. " + "; ".join(parts) + "."


def returning_by_head(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Share of the evictable tokens that return at least once, by layer and KV head; columns layer, head, ever."""
    table = frame.pivot(index="layer", columns="head", values="ever")
    return head_map(
        100 * table,
        "Evicted tokens that return at least once, by head",
        theme,
        bar="returned (%)",
        hover=": %{z:.1f} % return",
        high=100,
        colours=LOSS[theme],
    )


@with_simple(simple.returning_by_head)
def caption_returning_by_head(frame: pd.DataFrame) -> str:
    """The heads with the most and the fewest."""
    low = frame.loc[frame["ever"].idxmin()]
    high = frame.loc[frame["ever"].idxmax()]
    return (
        f"From {percent(low['ever'])} (layer {int(low['layer'])}, head {int(low['head'])}) to {percent(high['ever'])} "
        f"(layer {int(high['layer'])}, head {int(high['head'])}) of the evictable tokens return."
    )


def variance_by_token(frame: pd.DataFrame, texts: list[str], theme: Theme = "light") -> go.Figure:
    """Variance of each token's attention over all decode steps, and within windows, from `variances`."""
    shown = frame.nlargest(MAX_POINTS, "mean").sort_values("token")
    words = [visible(texts[token]) if token < len(texts) else "" for token in shown["token"]]
    figure = go.Figure()
    for column, name, (hue, _, marker) in (
        ("variance", "over all steps", LOOKS[0]),
        ("window_variance", "within a sliding window (mean)", LOOKS[1]),
    ):
        add_points(
            figure,
            shown["token"],
            shown[column].where(shown[column] > 0),
            name,
            pick(HUES[hue], theme),
            f"token %{{x}} %{{customdata}}: variance {name} %{{y:.3g}}",
            size=5,
            marker_symbol=marker,
            marker_opacity=0.65,
            customdata=words,
        )
    finish(
        figure,
        title="Variance of each token's attention while decoding",
        x="position of the token",
        y="variance (log)",
        theme=theme,
        height=400,
    )
    return figure.update_yaxes(**log_axis(shown[["variance", "window_variance"]].stack()))


@with_simple(simple.variance_by_token)
def caption_variance_by_token(frame: pd.DataFrame, ratio: float, shuffled: float) -> str:
    """Variance ratio of windows, and that expected without locality."""
    smaller = float((frame["window_variance"] < frame["variance"]).mean())
    return (
        f"Within a window the variance is {number(ratio)} times that over all steps (attention-weighted; "
        f"{number(shuffled)} with shuffled steps), and smaller for {percent(smaller)} of the tokens."
        f"{shown_of(MAX_POINTS, len(frame), 'token', 'the most attended')}"
    )


def error_by_step(frame: pd.DataFrame, kind: str, theme: Theme = "light") -> go.Figure:
    """Relative error of each predictor of the next row, median over heads, from `prediction_errors_of_heads`."""
    medians = frame[frame["kind"] == kind].groupby(["predictor", "step"], sort=False)["error"].median()
    figure = go.Figure()
    for name, (hue, dash, marker) in zip(medians.index.get_level_values(0).unique(), LOOKS, strict=False):
        line = medians[name]
        colour = pick(HUES[hue], theme)
        hover = f"{name}<br>step %{{x}}: relative error %{{y:.3g}}"
        add_line(figure, line.index, line, str(name), colour, dash, hover, marker=marker, marker_maxdisplayed=10)
    what = "attention" if kind == "mass" else "exp score"
    finish(
        figure,
        title=f"Error of predicting the next step's {what}",
        x="decode step",
        y="relative error (median over heads, log)",
        theme=theme,
        height=400,
    )
    return figure.update_yaxes(**log_axis(medians))


@with_simple(simple.error_by_step)
def caption_error_by_step(frame: pd.DataFrame, kind: str) -> str:
    """The predictors from best to worst."""
    medians = frame[frame["kind"] == kind].groupby("predictor", sort=False)["error"].median().sort_values()
    shown = ", ".join(f"{name} {number(error)}" for name, error in medians.items())
    return f"Median relative error over heads and steps, best first: {shown}."
