"""Numerical health of compared runs: growth of keys and values in merges."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import join_words
from kvlab.trace.reader import Run
from kvlab.views.base.lines import End, each_run, label_ends, labelled_height
from kvlab.views.base.palette import Theme
from kvlab.views.base.template import HEIGHT, QUIET, finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.frames.compare import unique_labels

GROWTHS = ("key_growth", "value_growth")
COLUMNS = ("step", *GROWTHS, "non_finite", "guard_activations")
PANELS = {"key_growth": "keys", "value_growth": "values"}
GREW = 1.001  # smaller ratios are rounding errors
WIDE = 20  # above it, use a log axis


@view("health", title="Growth of merged keys and values", page="cost")
def over_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per compressed run and step, over all layers and KV heads.

    Columns: label, method, step; key_growth and value_growth, the largest ratio of a slot's norm to the longest of its
    parts (1: no growth; missing: not recorded); non_finite, slots with an infinity or NaN after the step (missing: not
    recorded); guard_activations in the step. A run without recorded steps has no rows.
    """
    parts = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        if run.record.method != "full":
            steps = run.select("steps", columns=COLUMNS)
            # Infinite growth belongs to a non-finite slot, which has its own column.
            groups = steps.replace(dict.fromkeys(GROWTHS, np.inf), np.nan).groupby("step")
            counts = groups[["non_finite", "guard_activations"]].sum(min_count=1)
            table = groups[list(GROWTHS)].max().join(counts).reset_index()
            parts.append(table.assign(label=label, method=run.record.method))
    names = ["label", "method", *COLUMNS]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


@over_steps.figure
def growth_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Largest key and value growth in each step, from `over_steps`; a line at 1 marks no growth.

    Runs in which nothing grew are not drawn, unless there is no other.
    """
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    ends = []
    most = frame.groupby("label", sort=False)[list(PANELS)].max().max(axis=1)
    flat = set(most.index[most <= GREW])
    for label, run, look in each_run(frame, theme):
        if label in flat and len(flat) < frame["label"].nunique():
            continue
        for column, (measure, what) in enumerate(PANELS.items(), 1):
            known = run[run[measure].notna()]
            hover = f"{label}, step %{{x}}: {what} %{{y:.4g}} times as long<extra></extra>"
            place = {"row": 1, "col": column}
            figure.add_scatter(x=known["step"], y=known[measure], name=label, hovertemplate=hover, **look, **place)
        known = run[run["value_growth"].notna()]
        if len(known):
            last = known.iloc[-1]
            ends.append(End(label, float(last["step"]), float(last["value_growth"]), look["line"]["color"]))
    figure.add_hline(y=1, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    title = "Growth of merged keys and values"
    y = "length over the longest part's"
    height = labelled_height(len(ends), HEIGHT)
    finish(figure, title=title, x="step", y=y, theme=theme, height=height, legend=False)
    for column, what in enumerate(PANELS.values(), 1):
        figure.update_xaxes(title_text=f"step (merged {what})", col=column)
    figure.update_yaxes(title_text="", col=2)
    values = frame[list(PANELS)].stack()
    largest = float(values.max())
    scale: dict[str, Any] = {"range": (0.9, max(1.5, 1.06 * largest))}
    if largest > WIDE:
        scale = {**log_axis(values), "range": (math.log10(0.8), math.log10(1.3 * largest))}
    return label_ends(figure.update_yaxes(**scale), ends, scale["range"], theme, "2")


@over_steps.caption
def caption_growth_over_steps(frame: pd.DataFrame) -> str:
    """Whether merging made anything longer, or broke it."""
    if (frame["non_finite"] > 0).any():
        return "Some slots hold numbers that cannot be used any more."
    growths = frame[["key_growth", "value_growth"]]
    if growths.isna().all(axis=None):
        return "Whether merging makes keys or values longer was not recorded: it needs level full."
    grew = (growths > GREW).any(axis=1).groupby(frame["label"], sort=False).any()
    if not grew.any():
        return "No merge made a key or value longer than all of its parts."
    others = "" if grew.all() else f" Not drawn, as nothing grew: {join_words(grew.index[~grew].tolist())}."
    return f"Some merges made a key or value longer than all of its parts.{others}"
