"""KVMerger's Gaussian kernel with the weights of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import DASHES, HUES, STATE_COLOURS, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import number, percent, plural, shown_of

HUES_OF_CURVES = ("blue", "green", "orange", "purple", "grey")
MOST_POINTS = 2000


def kernel_curves(points: pd.DataFrame, curves: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Weight against distance to the pivot: one curve per sigma (columns sigma, name, distance, kernel) and merged
    tokens.

    `points` come from `gaussian_weights.merged_pairs`; at most `MOST_POINTS` are drawn.
    """
    figure = go.Figure()
    _points(figure, _some(points), "distance", theme)
    for rank, (name, curve) in enumerate(curves.groupby("name", sort=False)):
        figure.add_scatter(
            x=curve["distance"],
            y=curve["kernel"],
            mode="lines",
            name=str(name),
            line={"color": pick(HUES[HUES_OF_CURVES[rank % 5]], theme), "dash": DASHES[rank % 6], "width": 2},
            hovertemplate=f"{name}<br>distance %{{x:.2f}}: %{{y:.3f}}<extra></extra>",
        )
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


def read_kernel_in_sigmas(points: pd.DataFrame) -> str:
    """Largest deviation from the kernel, and the share of pairs."""
    off = float((points["relative_weight"] - points["kernel"]).abs().max())
    pairs = float((points["others"] == 1).sum() / (1 / points["others"]).sum())
    return (
        f"{plural(len(points), 'merged token')}; none is further than {number(off, 2)} from the curve. "
        f"{percent(pairs)} of the sets are pairs, whose weight does not depend on the distance."
        f"{_drawn(points)}"
    )


def read_kernel_curves(points: pd.DataFrame) -> str:
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
    for name, shown, symbol in (("pairs", points["others"] == 1, "x"), ("larger sets", points["others"] > 1, "circle")):
        if not shown.any():
            continue
        figure.add_scatter(
            x=places[shown],
            y=points.loc[shown, "relative_weight"],
            mode="markers",
            name=f"this run: {name}",
            marker={
                "symbol": symbol,
                "size": 6,
                "opacity": 0.55,
                "color": pick(STATE_COLOURS["pivot"] if name == "pairs" else HUES["ink"], theme),
            },
            customdata=points.loc[shown, ["layer", "head", "source", "target", "sigma"]].to_numpy(),
            hovertemplate="layer %{customdata[0]}, head %{customdata[1]}: token %{customdata[2]} into %{customdata[3]}"
            "<br>sigma %{customdata[4]:.2f}, weight %{y:.3f}<extra></extra>",
        )


def _some(points: pd.DataFrame) -> pd.DataFrame:
    if len(points) <= MOST_POINTS:
        return points
    return points.iloc[np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]
