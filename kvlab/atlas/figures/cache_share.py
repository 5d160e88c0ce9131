"""What a compressed cache takes of the full one, beside what a paper says it takes."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.base.palette import HUES, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import INK, finish
from kvlab.figures.base.words import byte_size, percent

BARS = (("ours", "this benchmark", "blue", ""), ("paper", "the paper", "grey", "/"))


def cache_share(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bars of bytes over the full cache's, by model and budget; columns row, ours, paper."""
    figure = go.Figure()
    for column, name, hue, pattern in BARS:
        colour = pick(HUES[hue], theme)
        shape = {"shape": pattern, "size": 5, "fgcolor": colour, "bgcolor": mix(colour, SURFACES[theme], 0.6)}
        figure.add_bar(
            x=frame["row"],
            y=frame[column],
            name=name,
            text=[percent(value) if value == value else "" for value in frame[column]],
            textposition="outside",
            marker={"color": colour, "pattern": shape if pattern else {}},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.1%}} of the full cache<extra></extra>",
        )
    title = "What the compressed cache takes of the full one"
    finish(figure, title=title, x="model and budget", y="bytes / bytes of the full cache", theme=theme, height=400)
    figure.update_layout(barmode="group", bargap=0.25)
    return figure.update_yaxes(range=[0, 1.08], tickformat=".0%").update_xaxes(showgrid=False)


def read_cache_share(frame: pd.DataFrame) -> str:
    """Ours and the paper's, in words."""
    parts = [f"{row.row} {percent(row.ours)} (paper {percent(row.paper)})" for row in frame.itertuples()]
    return f"Bytes of the cache over those of the full one: {', '.join(parts)}."


GPU_BYTES = 80e9


def kv_sizes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bars of tokens and of bytes (log axes), a row a model, from `analysis.kv_size.kv_sizes`; a line marks 80 GB."""
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    beyond = frame["bytes"] > GPU_BYTES
    patterns = ["/" if over else "" for over in beyond]
    bars = (
        ("tokens", "blue", [f"{count:,}" for count in frame["tokens"]], None),
        ("bytes", "orange", [byte_size(size) for size in frame["bytes"]], patterns),
    )
    for column, (name, hue, words, pattern) in enumerate(bars, start=1):
        figure.add_bar(
            x=frame[name], y=frame["name"], orientation="h", text=words, textposition="auto", name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern}}, row=1, col=column,
            hovertemplate="%{y}: %{text}<extra></extra>",
        )  # fmt: skip
    finish(figure, title="What the uncompressed cache takes", x="", y="", theme=theme,
           height=130 + 32 * len(frame), legend=False)  # fmt: skip
    figure.update_xaxes(type="log", exponentformat="SI", dtick=1)
    figure.update_xaxes(title_text="tokens", col=1).update_xaxes(title_text="bytes (hatched: above 80 GB)", col=2)
    figure.add_vline(GPU_BYTES, line={"color": INK[theme], "dash": "dot", "width": 1.2}, row=1, col=2)
    return figure.update_yaxes(autorange="reversed").update_yaxes(title_text="model", col=1)


def read_kv_sizes(frame: pd.DataFrame) -> str:
    """The largest cache and how many fit into 80 GB."""
    top = frame.loc[frame["bytes"].idxmax()]
    fit = int((frame["bytes"] <= GPU_BYTES).sum())
    return (
        f"{fit} of {len(frame)} caches fit into 80 GB without their weights; the largest, {top['name']}, takes "
        f"{byte_size(top['bytes'])} for {top['tokens']:,} tokens ({byte_size(top['per_token'])} a token and row)."
    )
