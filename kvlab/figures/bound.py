"""Sag, output perturbation and KeepKV's bound on one log axis, and by head how often it exists and is exceeded."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_lines, add_points
from kvlab.views.base.palette import HUES, LOSS, SEQUENTIAL, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.words import number, percent, plural

LINES = (
    Line("bound", "KeepKV's bound", "ink", "solid"),
    Line("output_error", "output error, all steps so far", "blue", "solid", "circle"),
    Line("perturbation", "perturbation by this step alone", "orange", "dash", "diamond"),
    Line("sag", "absolute sag", "red", "dot", "triangle-down"),
)
MEASURES = {
    "bounded": ("Bound exists", "share of steps with epsilon < 1"),
    "above": ("Above the bound", "share of steps"),
    "epsilon": ("Prediction error", "median epsilon (at most 2 shown)"),
}
FLOOR = 1e-7

# Descriptions of the flags of `analysis.attention.bound`.
ABOVE = {
    "above": "with nothing dropped",
    "above, heads share slots": "with nothing dropped, where query heads share slots, which the theorem does not cover",
    "above, tokens dropped": "where tokens were dropped, which the theorem does not cover",
}


def sag_against_bound(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """The three measures and the bound over the steps of one head (`bound_over_steps`) or as medians over heads
    (`over_heads`); steps above the bound are marked."""
    # On a log axis: floored, and nothing where values are not positive.
    values = frame[[line.column for line in LINES]].astype(np.float64)
    drawn = values.where(values > 0).clip(lower=FLOOR)
    figure = go.Figure()
    for line in LINES:
        if drawn[line.column].notna().any():
            width = 2.4 if line.column == "bound" else 1.6
            hover = "step %{x}: {name} %{y:.3g}"
            add_lines(figure, frame["step"], drawn, [line], theme, hover, size=5, width=width)
    broken = frame[frame["flag"] != ""] if "flag" in frame else frame.iloc[:0]
    if len(broken):
        largest = broken[["perturbation", "output_error"]].max(axis=1)
        add_points(
            figure,
            broken["step"],
            largest,
            "above the bound",
            pick(HUES["red"], theme),
            "step %{x}: %{customdata}",
            size=12,
            marker_symbol="x-open",
            marker_line_width=2.5,
            customdata=broken["flag"],
        )
    if not figure.data:
        figure.add_scatter(x=frame["step"], y=frame["output_error"], name="output error", mode="lines")
    title = "Sag, output change and KeepKV's bound"
    finish(figure, title=title, x="step", y="share of attention, relative change (log)", theme=theme, height=430)
    figure.layout.showlegend = True
    return figure.update_yaxes(**log_axis(drawn.to_numpy()))


@with_simple(simple.sag_against_bound)
def caption_sag_against_bound(frame: pd.DataFrame, predicts: bool) -> str:
    """How often the bound exists and how tight it is; `predicts`: epsilon is the method's own."""
    whose = "the method's own prediction" if predicts else "predicting each step by the previous one"
    if not frame["gamma"].notna().any():
        why = "nothing was merged" if not frame["merged"].any() else "values or attention rows are missing"
        return f"KeepKV's bound cannot be computed here: {why} (0 of {plural(len(frame), 'step')})."
    known = frame[frame["bound"].notna()]
    if known.empty:
        return (
            f"KeepKV's bound cannot be computed at any of {plural(len(frame), 'step')}: epsilon (from {whose}) is "
            f"never below 1, median {number(float(frame['epsilon'].median()))}."
        )
    ratio = (known["bound"] / known["output_error"].where(known["output_error"] > 0)).median()
    where = f"at {len(known)} of {plural(len(frame), 'step')}"
    if "bounded" in frame:
        where = f"for {percent(float(frame['bounded'].mean()))} of the heads and steps"
    times = number(float(ratio), 2)
    exists = f"The bound exists {where} (epsilon < 1, from {whose})"
    return f"{exists}; its median is {times} times the actual change. {_broken(frame)}"


def _broken(frame: pd.DataFrame) -> str:
    if "above" in frame:
        return f"On average {percent(float(frame['above'].mean()))} of the heads changed by more than the bound."
    counts = {words: int((frame["flag"] == flag).sum()) for flag, words in ABOVE.items()}
    parts = [f"{count} {words}" for words, count in counts.items() if count]
    if not parts:
        return "The change never exceeded it."
    return f"The change exceeded it at {plural(sum(counts.values()), 'step')}: {' and '.join(parts)}."


def bound_by_head(frame: pd.DataFrame, measure: str, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """One of `MEASURES` by layer and KV head, from `heads_summary`."""
    title, unit = MEASURES[measure]
    table = frame.assign(epsilon=frame["epsilon"].clip(upper=2)).pivot(index="layer", columns="head", values=measure)
    largest = 2.0 if measure == "epsilon" else 1.0
    colours = SEQUENTIAL[theme] if measure == "bounded" else LOSS[theme]
    hover = f"<br>{unit} %{{z:.3g}}"
    return head_map(table, title, theme, bar=unit, hover=hover, high=largest, colours=colours, focus=focus)


@with_simple(simple.bound_by_head)
def caption_bound_by_head(frame: pd.DataFrame, measure: str) -> str:
    """Summary over all heads."""
    heads = plural(len(frame), "head")
    if measure == "epsilon":
        below = int((frame["epsilon"] < 1).sum())
        return f"In {below} of {heads} the median error is below 1; above 1 the theorem says nothing."
    top = frame.loc[frame[measure].idxmax()]
    place = f"layer {int(top['layer'])}, head {int(top['head'])}"
    return (
        f"{percent(float(frame[measure].mean()))} of the steps over {heads}; most in {place}: {percent(top[measure])}."
    )
