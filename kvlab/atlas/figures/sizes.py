"""Sizes: compressed caches relative to the full one, uncompressed caches by model, and prompts by task."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.figures.simple import budgets as simple
from kvlab.common.formatting import mean_words
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import hatch
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.template import INK, finish
from kvlab.views.base.words import byte_size, percent, plural, with_spaces

BARS = (("ours", "this benchmark", "blue", ""), ("paper", "the paper", "grey", "/"))


def cache_share(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bars of bytes relative to the full cache, by model and budget; columns row, ours, paper."""
    figure = go.Figure()
    for column, name, hue, pattern in BARS:
        colour = pick(HUES[hue], theme)
        figure.add_bar(
            x=frame["row"],
            y=frame[column],
            name=name,
            textposition="outside",
            text=[percent(value) if value == value else "" for value in frame[column]],
            marker={"color": colour, "pattern": hatch(pattern, colour, theme, pale=0.6)},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.1%}} of the full cache<extra></extra>",
        )
    title = "Compressed cache relative to the full one"
    finish(figure, title=title, x="model and budget", y="bytes / bytes of the full cache", theme=theme, height=400)
    figure.update_layout(barmode="group", bargap=0.25)
    return figure.update_yaxes(range=[0, 1.08], tickformat=".0%").update_xaxes(showgrid=False)


@with_simple(simple.cache_share)
def caption_cache_share(frame: pd.DataFrame) -> str:
    """Measured and published ratios."""
    parts = [f"{row.row} {percent(row.ours)} (paper {percent(row.paper)})" for row in frame.itertuples()]
    return f"Bytes of the cache relative to the full one: {', '.join(parts)}."


GPU_BYTES = 80e9


def kv_sizes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bars of tokens and bytes (log axes), one row per model, from `calculator.kv_sizes`; a line marks 80 GB."""
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    beyond = frame["bytes"] > GPU_BYTES
    patterns = ["/" if over else "" for over in beyond]
    bars = (
        ("tokens", "blue", [f"{count:,}" for count in frame["tokens"]], None),
        ("bytes", "orange", [byte_size(size) for size in frame["bytes"]], patterns),
    )
    for column, (name, hue, words, pattern) in enumerate(bars, start=1):
        figure.add_bar(
            x=frame[name],
            y=frame["name"],
            orientation="h",
            text=words,
            textposition="auto",
            name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern}},
            row=1,
            col=column,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    finish(
        figure,
        title="Size of the uncompressed cache",
        x="",
        y="",
        theme=theme,
        height=130 + 32 * len(frame),
        legend=False,
    )
    figure.update_xaxes(type="log", exponentformat="SI", dtick=1)
    figure.update_xaxes(title_text="tokens", col=1).update_xaxes(title_text="bytes (hatched: above 80 GB)", col=2)
    figure.add_vline(GPU_BYTES, line={"color": INK[theme], "dash": "dot", "width": 1.2}, row=1, col=2)
    return figure.update_yaxes(autorange="reversed").update_yaxes(title_text="model", col=1)


@with_simple(simple.kv_sizes)
def caption_kv_sizes(frame: pd.DataFrame) -> str:
    """The largest cache, and how many fit into 80 GB."""
    top = frame.loc[frame["bytes"].idxmax()]
    fit = int((frame["bytes"] <= GPU_BYTES).sum())
    return (
        f"{fit} of {len(frame)} caches fit into 80 GB without their weights; the largest, {top['name']}, takes "
        f"{byte_size(top['bytes'])} for {top['tokens']:,} tokens ({byte_size(top['per_token'])} per token and row)."
    )


def task_lengths(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """One row per task: mean prompt length as a point, shortest to longest as a bar.

    From `pyramid_pool.scored.evaluated_tasks`, with the interval of the mean in mean_low and mean_high.
    """
    spread = {
        "type": "data",
        "symmetric": False,
        "array": frame["longest"] - frame["mean"],
        "arrayminus": frame["mean"] - frame["shortest"],
        "thickness": 2,
        "width": 5,
    }
    names = frame["task"].map(with_spaces) + "<br>" + frame["metric"].map(with_spaces)
    points = go.Scatter(
        x=frame["mean"],
        y=names,
        mode="markers",
        error_x=spread,
        marker={"size": 11, "symbol": "diamond", "color": pick(HUES["blue"], theme)},
        customdata=[
            mean_words(row.mean, row.mean_low, row.mean_high, row.prompts, "{:,.0f}".format)
            for row in frame.itertuples(index=False)
        ],
        hovertemplate="%{y}: %{customdata} tokens on average<extra></extra>",
    )
    figure = finish(
        go.Figure(points),
        title="Prompt lengths by task",
        x="prompt length (tokens)",
        y="task, metric",
        theme=theme,
        height=150 + 44 * len(frame),
        legend=False,
    )
    return figure.update_yaxes(autorange="reversed", type="category").update_xaxes(rangemode="tozero")


@with_simple(simple.task_lengths)
def caption_task_lengths(frame: pd.DataFrame) -> str:
    """Numbers of tasks, prompts and tokens."""
    return (
        f"{plural(len(frame), 'task')} with {plural(frame['prompts'].sum(), 'prompt')} of "
        f"{frame['shortest'].min():,} to {frame['longest'].max():,} tokens."
    )
