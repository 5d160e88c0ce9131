"""Prompt lengths and metrics of an evaluation's tasks."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import mean_words
from kvlab.figures.base.palette import HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import plural, spaced


def task_lengths(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """One row per task: mean prompt length as a point, shortest to longest as a bar.

    From `pyramid_pool.scored.evaluated_tasks`, with the interval of the mean in mean_low and mean_high.
    """
    spread = {
        "type": "data", "symmetric": False, "array": frame["longest"] - frame["mean"],
        "arrayminus": frame["mean"] - frame["shortest"], "thickness": 2, "width": 5,
    }  # fmt: skip
    names = frame["task"].map(spaced) + "<br>" + frame["metric"].map(spaced)
    points = go.Scatter(
        x=frame["mean"], y=names, mode="markers", error_x=spread,
        marker={"size": 11, "symbol": "diamond", "color": pick(HUES["blue"], theme)},
        customdata=[
            mean_words(row.mean, row.mean_low, row.mean_high, row.prompts, "{:,.0f}".format)
            for row in frame.itertuples(index=False)
        ],
        hovertemplate="%{y}: %{customdata} tokens on average<extra></extra>",
    )  # fmt: skip
    figure = finish(
        go.Figure(points), title="Prompt lengths by task", x="prompt length (tokens)", y="task, metric",
        theme=theme, height=150 + 44 * len(frame), legend=False,
    )  # fmt: skip
    return figure.update_yaxes(autorange="reversed", type="category").update_xaxes(rangemode="tozero")


def read_task_lengths(frame: pd.DataFrame) -> str:
    """Numbers of tasks, prompts and tokens."""
    return (
        f"{plural(len(frame), 'task')} with {plural(frame['prompts'].sum(), 'prompt')} of "
        f"{frame['shortest'].min():,} to {frame['longest'].max():,} tokens."
    )
