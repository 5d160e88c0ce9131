"""Numerical health of compared runs: growth of keys and values in merges."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.compare import MAX_MARKERS, styles_of
from kvlab.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.end_labels import End, label_ends, labelled_height
from kvlab.views.base.lines import add_line
from kvlab.views.base.palette import Theme
from kvlab.views.base.template import HEIGHT, QUIET, finish, log_axis
from kvlab.views.base.words import number, plural

PANELS = {"key_growth": "keys", "value_growth": "values"}
GREW = 1.001  # smaller ratios are rounding errors
WIDE = 20  # above it, use a log axis


def growth_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Largest key and value growth in each step, from `health.over_steps`; a line at 1 marks no growth.

    Runs in which nothing grew are not drawn, unless there is no other.
    """
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    ends = []
    flat = set(without_growth(frame))
    for label, style in styles_of(frame, theme).items():
        run = frame[frame["label"] == label]
        if label in flat and len(flat) < frame["label"].nunique():
            continue
        for column, (measure, what) in enumerate(PANELS.items(), 1):
            known = run[run[measure].notna()]
            hover = f"{label}, step %{{x}}: {what} %{{y:.4g}} times as long"
            add_line(
                figure,
                known["step"],
                known[measure],
                label,
                style.colour,
                style.dash,
                hover,
                marker=style.marker,
                width=1.8,
                marker_maxdisplayed=MAX_MARKERS,
                row=1,
                col=column,
            )
        known = run[run["value_growth"].notna()]
        if len(known):
            ends.append(End(label, float(known["step"].iloc[-1]), float(known["value_growth"].iloc[-1]), style.colour))
    figure.add_hline(y=1, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    title = "Growth of merged keys and values"
    y = "length over the longest part's"
    height = labelled_height(len(ends), HEIGHT)
    finish(figure, title=title, x="step", y=y, theme=theme, height=height, legend=False)
    for column, what in enumerate(PANELS.values(), 1):
        figure.update_xaxes(title_text=f"step (merged {what})", col=column)
    figure.update_yaxes(title_text="", col=2)
    scale = _scale(pd.concat([frame[measure] for measure in PANELS]))
    return label_ends(figure.update_yaxes(**scale), ends, scale["range"], theme, "2")


def without_growth(frame: pd.DataFrame) -> list[str]:
    """The labels of runs in which no merge made a key or value longer."""
    most = frame.groupby("label", sort=False)[list(PANELS)].max().max(axis=1)
    return [str(label) for label in most.index[most <= GREW]]


@with_simple(simple.growth_over_steps)
def caption_growth_over_steps(frame: pd.DataFrame) -> str:
    """Non-finite slots, largest growth and guard activations."""
    if frame[["non_finite", *PANELS]].isna().all(axis=None):
        return f"Only guards were recorded: numerical health needs level full. {_guarded(frame)}"
    return " ".join((_lost(frame), _grown(frame), _guarded(frame)))


def _scale(values: pd.Series) -> dict[str, Any]:
    largest = float(values.max())
    if largest > WIDE:
        return {**log_axis(values), "range": (math.log10(0.8), math.log10(1.3 * largest))}
    return {"range": (0.9, max(1.5, 1.06 * largest))}


def _lost(frame: pd.DataFrame) -> str:
    known = frame[frame["non_finite"].notna()]
    bad = known[known["non_finite"] > 0]
    if bad.empty:
        runs = known["label"].nunique()
        steps = known.groupby("label").size().max()
        return f"No slot of {plural(runs, 'run')} was non-finite in {plural(steps, 'step')}."
    first = bad.loc[bad["step"].idxmin()]
    worst = bad.loc[bad["non_finite"].idxmax()]
    slots = plural(worst["non_finite"], "slot")
    labels = ", ".join(bad["label"].unique())
    return f"Non-finite: {slots} at step {int(worst['step'])}, the first at step {int(first['step'])} ({labels})."


def _grown(frame: pd.DataFrame) -> str:
    growths = []
    for measure, what in PANELS.items():
        if (frame[measure] > GREW).any():
            top = frame.loc[frame[measure].idxmax()]
            growths.append(f"{what} {number(top[measure])} times ({top['label']}, step {int(top['step'])})")
    if growths:
        flat = without_growth(frame)
        others = f" Not drawn, as nothing grew: {', '.join(flat)}." if flat else ""
        return f"Largest growth in a merge: {' and '.join(growths)} the length of its longest part.{others}"
    return "No merge made a key or value longer than its longest part (1.0)."


def _guarded(frame: pd.DataFrame) -> str:
    fired = frame.groupby("label", sort=False)["guard_activations"].sum()
    fired = fired[fired > 0]
    if fired.empty:
        return "No guard was activated."
    return "Guards activated: " + ", ".join(f"{label} {plural(count, 'time')}" for label, count in fired.items()) + "."
