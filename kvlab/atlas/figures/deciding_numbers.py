"""The numbers that decide a verdict: one dot per prompt or pair, mean and interval, and the threshold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import in_range
from kvlab.figures.base.palette import HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import number
from kvlab.results.verdict import Claim

TITLE = "The numbers that decide it"
HEIGHT = 230
DOT, MEAN, THRESHOLD = "dot", "mean", "threshold"
DOTS_AT, MEAN_AT = 0.35, -0.7  # heights; the plot is from -1 to 1, and dots of one bin are stacked
BINS, MOST_STEP, DOTS_HIGH = 90, 0.14, 1.0
PIXELS = 72  # of a height of 1
LARGEST_DOT, SMALLEST_DOT = 9, 3
COUNTED = 5  # a stack of so many dots has their number above it


def deciding_frame(claim: Claim) -> pd.DataFrame:
    """The figure's frame: `part` (dot, mean, threshold), `value`, and bounds.

    The mean has `low` and `high` (95 %) and `n`, the number of prompts. The threshold has as `low` and `high` the range
    that counts for the claim, infinite on an open side. Empty for a claim that no interval decides.
    """
    found, held = claim.interval, claim.threshold
    rows: list[dict[str, object]] = []
    if found is not None and held is not None:
        rows += [{"part": DOT, "value": value, "n": 1} for value in found.samples]
        rows.append({"part": MEAN, "value": found.mean, "low": found.low, "high": found.high, "n": found.n})
        low = -np.inf if held.at_most else held.value
        high = held.value if held.at_most else np.inf if held.up_to is None else held.up_to
        rows.append({"part": THRESHOLD, "value": held.value, "low": low, "high": high, "n": 0})
    return pd.DataFrame(rows, columns=["part", "value", "low", "high", "n"])


def deciding_numbers(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """Dots above, mean and interval below, on one axis; the range that counts for the claim is shaded."""
    dots = frame.loc[frame["part"] == DOT, "value"].to_numpy(float)
    (mean,), (held,) = (frame[frame["part"] == part].to_dict("records") for part in (MEAN, THRESHOLD))
    blue, green, grey = (pick(HUES[name], theme) for name in ("blue", "green", "grey"))
    bounds = [one for one in (held["low"], held["high"]) if np.isfinite(one)]
    shown = np.array([*dots, mean["low"], mean["high"], mean["value"], *bounds])
    room = 0.08 * (float(np.ptp(shown)) or max(abs(float(shown[0])), 1e-9))
    left, right = float(shown.min()) - room, float(shown.max()) + room
    figure = go.Figure()
    heights, stacks = _stacked(dots)
    most = max((count for _, count in stacks), default=1)
    figure.add_scatter(
        x=dots, y=DOTS_AT + heights, mode="markers", name="dots", hovertemplate="%{x:.4g}<extra></extra>",
        marker={"color": blue, "size": min(LARGEST_DOT, max(SMALLEST_DOT, PIXELS * DOTS_HIGH / most)), "opacity": 0.75},
    )  # fmt: skip
    for value, count in stacks:
        if count >= COUNTED:
            figure.add_annotation(
                x=value, y=DOTS_AT + _step(most) * (count - 1) / 2, yshift=5, yanchor="bottom", text=f"{count}",
                showarrow=False, font={"size": 11, "color": blue},
            )  # fmt: skip
    figure.add_scatter(
        x=[mean["value"]], y=[MEAN_AT], mode="markers", name="mean",
        marker={"color": blue, "size": 12, "symbol": "diamond"},
        error_x={"type": "data", "symmetric": False, "array": [mean["high"] - mean["value"]],
                 "arrayminus": [mean["value"] - mean["low"]], "color": blue, "thickness": 2.5, "width": 7},
        hovertemplate="mean %{x:.4g}<extra></extra>",
    )  # fmt: skip
    figure.add_vrect(
        x0=max(left, held["low"]), x1=min(right, held["high"]), fillcolor=green, opacity=0.1, line_width=0,
        layer="below",
    )  # fmt: skip
    for bound in bounds:
        figure.add_vline(x=bound, line={"color": grey, "width": 2, "dash": "dash"})
    figure = finish(figure, title=TITLE, x="deciding number", y="", theme=theme, height=HEIGHT, legend=False)
    figure.update_yaxes(range=[-1, 1], visible=False)
    return figure.update_xaxes(range=[left, right])


def read_deciding_numbers(frame: pd.DataFrame) -> str:
    """Caption of the figure: the meaning of dots, bar and shade, and n."""
    dots = int((frame["part"] == DOT).sum())
    (mean,), (held,) = (frame[frame["part"] == part].to_dict("records") for part in (MEAN, THRESHOLD))
    prompts = int(mean["n"])
    one = (
        f"One dot per prompt (n = {dots})" if dots == prompts
        else f"One dot per pair of prompts ({dots} pairs, n = {prompts} prompts)" if dots
        else f"The values of single prompts were not kept (n = {prompts})"
    )  # fmt: skip
    middle, low, high = in_range(mean["value"], mean["low"], mean["high"])
    told = f"diamond and bar: the mean {middle} and its 95 % interval ({low} to {high})"
    if prompts < 2:
        told = f"one prompt gives {middle} and no interval"
    return f"{one}; {told}. Counts for the claim: {_range(held)}."


def _range(held: dict[str, float]) -> str:
    low, high = held["low"], held["high"]
    if np.isfinite(low) and np.isfinite(high):
        return f"{number(low)} to {number(high)}"
    return f"above {number(low)}" if np.isfinite(low) else f"below {number(high)}"


def _stacked(values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, int]]]:
    """Heights that keep dots of nearly the same value apart, symmetric about 0; and each stack's value and size."""
    if not len(values):
        return values, []
    width = float(np.ptp(values)) / BINS or 1.0
    bins = np.round((values - values.min()) / width).astype(int)
    step = _step(int(np.bincount(bins).max()))
    heights, stacks = np.zeros(len(values)), []
    for one in np.unique(bins):
        places = np.flatnonzero(bins == one)
        heights[places] = step * (np.arange(len(places)) - (len(places) - 1) / 2)
        stacks.append((float(values[places].mean()), len(places)))
    return heights, stacks


def _step(most: int) -> float:
    """Height between two dots of a stack, where the largest stack has `most`."""
    return min(MOST_STEP, DOTS_HIGH / max(1, most - 1))
