"""KVMerger's sets: weights by distance with the Gaussian kernel, and layer compression by prompt and threshold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import add_line, add_points
from kvlab.views.base.palette import DASHES, FALLBACK_MARKERS, HUES, STATE_COLOURS, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import number, percent, plural, shown_of
from kvlab.views.scores import line_text

HUES_OF_CURVES = ("blue", "green", "orange", "purple", "grey")
MOST_POINTS = 2000


def kernel_curves(points: pd.DataFrame, curves: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Weight by distance to the pivot: merged tokens, and a curve per sigma (columns sigma, name, distance, kernel).

    `points` come from `merging_sets.merged_pairs`; at most `MOST_POINTS` are drawn.
    """
    figure = go.Figure()
    _points(figure, _some(points), "distance", theme)
    for rank, (name, curve) in enumerate(curves.groupby("name", sort=False)):
        colour = pick(HUES[HUES_OF_CURVES[rank % 5]], theme)
        hover = f"{name}<br>distance %{{x:.2f}}: %{{y:.3f}}"
        add_line(figure, curve["distance"], curve["kernel"], str(name), colour, DASHES[rank % 6], hover, width=2)
    title = "Weight of a token relative to its pivot, by distance"
    finish(figure, title=title, x="distance of its key to the pivot's (L2)", y="weight / pivot's weight", theme=theme)
    return figure.update_layout(height=420)


def kernel_in_sigmas(points: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """The same with distances in units of the set's sigma: all tokens are on one curve if the rule was followed."""
    figure = go.Figure()
    _points(figure, _some(points), "in_sigmas", theme)
    reach = max(3.0, float((points["distance"] / points["sigma"]).max()))
    x = np.linspace(0, reach, 200)
    figure.add_scatter(
        x=x,
        y=np.exp(-(x**2) / 2),
        mode="lines",
        name="exp(-x² / 2)",
        line={"color": pick(HUES["blue"], theme), "width": 2},
        hovertemplate="%{x:.2f} sigma: %{y:.3f}<extra></extra>",
    )
    title = "The same with distances in units of sigma"
    finish(figure, title=title, x="distance / sigma of the set", y="weight / pivot's weight", theme=theme)
    return figure.update_layout(height=380)


@with_simple(simple.kernel_in_sigmas)
def caption_kernel_in_sigmas(points: pd.DataFrame) -> str:
    """Largest deviation from the kernel, and the share of pairs."""
    off = float((points["relative_weight"] - points["kernel"]).abs().max())
    pairs = float((points["others"] == 1).sum() / (1 / points["others"]).sum())
    return (
        f"{plural(len(points), 'merged token')}; none is further than {number(off, 2)} from the curve. "
        f"{percent(pairs)} of the sets are pairs, whose weight does not depend on the distance."
        f"{_drawn(points)}"
    )


@with_simple(simple.kernel_curves)
def caption_kernel_curves(points: pd.DataFrame) -> str:
    """Observed distances and sigmas."""
    low, high = points["distance"].quantile([0.1, 0.9])
    return (
        f"Merged keys are {number(low, 2)} to {number(high, 2)} away from their pivot (middle 80 %); the median sigma "
        f"of a set is {number(float(points['sigma'].median()), 2)}.{_drawn(points)}"
    )


def _drawn(points: pd.DataFrame) -> str:
    return shown_of(MOST_POINTS, len(points), "merged token", "evenly chosen")


def _points(figure: go.Figure, points: pd.DataFrame, x: str, theme: Theme) -> None:
    places = points["distance"] / points["sigma"] if x == "in_sigmas" else points["distance"]
    hover = (
        "layer %{customdata[0]}, head %{customdata[1]}: token %{customdata[2]} into %{customdata[3]}"
        "<br>sigma %{customdata[4]:.2f}, weight %{y:.3f}"
    )
    for name, shown, symbol, colours in (
        ("pairs", points["others"] == 1, "x", STATE_COLOURS["pivot"]),
        ("larger sets", points["others"] > 1, "circle", HUES["ink"]),
    ):
        if shown.any():
            details = points.loc[shown, ["layer", "head", "source", "target", "sigma"]].to_numpy()
            add_points(
                figure,
                places[shown],
                points.loc[shown, "relative_weight"],
                f"this run: {name}",
                pick(colours, theme),
                hover,
                marker_symbol=symbol,
                marker_opacity=0.55,
                customdata=details,
            )


def _some(points: pd.DataFrame) -> pd.DataFrame:
    if len(points) <= MOST_POINTS:
        return points
    return points.iloc[np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]


PROMPT_HUES = ("blue", "orange", "green", "purple", "ink", "red", "sky", "grey")
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", *FALLBACK_MARKERS)


def ratio_by_layer(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots per token in each layer, one line per prompt; columns prompt, layer, ratio (mean over heads)."""
    figure = go.Figure()
    for rank, (prompt, group) in enumerate(frame.groupby("prompt", sort=False)):
        colour = pick(HUES[PROMPT_HUES[rank % 8]], theme)
        hover = f"{prompt}<br>layer %{{x}}: %{{y:.3f}}"
        marker = MARKERS[rank % len(MARKERS)]
        dash = DASHES[rank % 6]
        add_line(figure, group["layer"], group["ratio"], str(prompt), colour, dash, hover, marker=marker, size=8)
    below = 22 * frame["prompt"].nunique()
    title = "Compression ratio of merge sets by layer"
    finish(figure, title=title, x="layer", y="sets / tokens", theme=theme, height=380 + below)
    figure.update_layout(margin={"t": 56 + below}, legend={"orientation": "v"}, showlegend=True)
    layers = sorted(frame["layer"].unique())
    figure.update_xaxes(tickvals=layers[:: max(1, -(-len(layers) // 16))], showgrid=False)
    return figure.update_yaxes(range=[0, 1.03])


@with_simple(simple.ratio_by_layer)
def caption_ratio_by_layer(means: pd.DataFrame) -> str:
    """The layers that shrink most and least; `means` has one row per layer, with intervals over the prompts."""
    least = means.loc[means["ratio"].idxmin()]
    most = means.loc[means["ratio"].idxmax()]
    low, high = (line_text(line, "ratio", percent) for line in (least, most))
    return (
        f"Layer {least['layer']:.0f} shrinks most, to {low} of its tokens, and layer {most['layer']:.0f} least, to "
        f"{high}, means over heads."
    )


def ratio_by_threshold(frame: pd.DataFrame, chosen: float, theme: Theme = "light") -> go.Figure:
    """Slots per token at each threshold, one faint line per layer and their mean; columns as `ratios`."""
    figure = go.Figure()
    quiet = pick(HUES["grey"], theme)
    layers = frame.groupby(["layer", "threshold"])["ratio"].mean().reset_index()
    for layer, group in layers.groupby("layer"):
        figure.add_scatter(
            x=group["threshold"],
            y=group["ratio"],
            mode="lines",
            line={"color": quiet, "width": 1},
            opacity=0.55,
            name="each layer",
            legendgroup="layers",
            showlegend=bool(layer == layers["layer"].iloc[0]),
            hovertemplate=f"layer {layer}, threshold %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    mean = frame.groupby("threshold")["ratio"].mean()
    figure.add_scatter(
        x=mean.index,
        y=mean,
        mode="lines+markers",
        name="all heads",
        marker={"size": 7},
        line={"color": pick(HUES["blue"], theme), "width": 2.4},
        hovertemplate="threshold %{x}: %{y:.3f}<extra></extra>",
    )
    figure.add_vline(
        x=chosen,
        line={"color": pick(HUES["ink"], theme), "width": 1, "dash": "dot"},
        annotation={"text": "the paper's threshold", "font": {"size": 11}, "xanchor": "left", "y": 0.04},
    )
    title = "Compression ratio by threshold"
    finish(figure, title=title, x="threshold (cosine with the anchor)", y="sets / tokens", theme=theme)
    return figure.update_yaxes(range=[0, 1.03])


@with_simple(simple.ratio_by_threshold)
def caption_ratio_by_threshold(frame: pd.DataFrame, chosen: float) -> str:
    """Ratios at the paper's threshold and at the extremes."""
    mean = frame.groupby("threshold")["ratio"].mean()
    return (
        f"At {number(chosen)} merging alone leaves {percent(mean[chosen])} of the tokens; at "
        f"{number(mean.index.min())} {percent(mean.iloc[0])}, at {number(mean.index.max())} {percent(mean.iloc[-1])}."
    )
