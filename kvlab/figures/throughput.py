"""Memory and speed against context length, and against a paper's measurements."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.base.palette import HUES, Theme, method_style, pick
from kvlab.figures.base.template import QUIET, finish
from kvlab.figures.base.words import byte_size, byte_unit, number

PANELS = (("bytes", "weights and cache"), ("rate", "decode rate (tokens/s)"))


def over_length(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Bytes (top) and decode rate (bottom) against the tokens in the cache.

    Columns of `frame`: name, method, context, measure (bytes or rate), value, spread (interquartile range), status.
    Points that ran out of memory are crosses on the axis.
    """
    factor, unit = byte_unit(float(frame.loc[frame["measure"] == "bytes", "value"].max() or 1))
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    for row, (measure, title) in enumerate(PANELS, start=1):
        scale = factor if measure == "bytes" else 1.0
        for (name, method), group in frame[frame["measure"] == measure].groupby(["name", "method"], sort=False):
            _line(figure, group.sort_values("context"), str(name), str(method), scale, theme, row)
        figure.update_yaxes(title_text=f"{title} ({unit})" if measure == "bytes" else title, row=row)
    axes = figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text
    finish(figure, title="Memory and speed by context length", x="", y="", theme=theme, height=560)
    for row, text in enumerate(axes, start=1):
        figure.update_yaxes(title_text=text, rangemode="tozero", row=row)
    return figure.update_xaxes(title_text="tokens in the cache", row=2)


def read_over_length(frame: pd.DataFrame) -> str:
    """Rate and bytes of each line at both ends."""
    parts = []
    for name, group in frame[frame["status"] == "ok"].groupby("name", sort=False):
        group = group.sort_values("context")
        rate, size = (group.loc[group["measure"] == measure, "value"] for measure in ("rate", "bytes"))
        if len(rate) and len(size):
            rates = f"{number(rate.iloc[0])} to {number(rate.iloc[-1])} tokens/s"
            parts.append(f"{name}: {rates}, {byte_size(size.iloc[0])} to {byte_size(size.iloc[-1])}")
    lengths = frame["context"]
    return f"From {lengths.min():,} to {lengths.max():,} tokens: {'; '.join(parts)}."


def against_the_paper(frame: pd.DataFrame, theme: Theme = "light", title: str = "") -> go.Figure:
    """Bars of the ratio to the full cache, measured and published, one row per method and setting.

    Columns of `frame`: setting, method, our_ratio, paper_ratio; a missing ratio has no bar.
    """
    names = frame["method"] + " · " + frame["setting"]
    ours, theirs = pick(HUES["blue"], theme), pick(HUES["grey"], theme)
    figure = go.Figure()
    for column, name, colour, pattern in (("our_ratio", "kvlab", ours, ""), ("paper_ratio", "paper", theirs, "/")):
        figure.add_bar(
            y=names, x=frame[column], name=name, orientation="h",
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=[f"{value:.2f}" if pd.notna(value) else "" for value in frame[column]], textposition="outside",
            hovertemplate=f"%{{y}}<br>{name}: %{{x:.3g}} times the full cache<extra></extra>",
        )  # fmt: skip
    for column, reason, shift in (("our_ratio", "why", 9), ("paper_ratio", "note", -9)):
        if reason in frame:
            _why_missing(figure, names, frame[frame[column].isna()][reason], shift, theme)
    height = 130 + 44 * len(frame)
    finish(figure, title=title, x="times the full cache", y="method and setting", theme=theme, height=height)
    figure.add_vline(1, line={"color": QUIET[theme], "width": 1, "dash": "dot"})
    return figure.update_yaxes(autorange="reversed").update_xaxes(rangemode="tozero")


def _why_missing(figure: go.Figure, names: pd.Series, reasons: pd.Series, shift: int, theme: Theme) -> None:
    """The reason in place of a missing bar."""
    for place, reason in reasons.items():
        if isinstance(reason, str) and reason:
            figure.add_annotation(
                x=0, y=names[place], text=reason, showarrow=False, xanchor="left", yshift=shift, xshift=4,
                font={"size": 11, "color": QUIET[theme]},
            )  # fmt: skip


def read_against_the_paper(frame: pd.DataFrame) -> str:
    """The ratios, where both exist."""
    both = frame.dropna(subset=["our_ratio", "paper_ratio"])
    parts = [
        f"{row.method} {row.setting}: {row.our_ratio:.2f} here, {row.paper_ratio:.2f} in the paper"
        for row in both.itertuples()
    ]
    return f"Ratio to the full cache, measured in both for {len(both)} of {len(frame)} settings. {'; '.join(parts)}."


def _line(figure: go.Figure, group: pd.DataFrame, name: str, method: str, scale: float, theme: Theme, row: int) -> None:
    style = method_style(method, theme)
    failed = group["status"] == "oom"
    figure.add_scatter(
        x=group["context"], y=group["value"].where(~failed) / scale, name=name, legendgroup=name,
        mode="lines+markers", showlegend=row == 1, row=row, col=1,
        line={"color": style.colour, "dash": style.dash, "width": 1.8},
        marker={"symbol": style.marker, "size": 8},
        error_y={"type": "data", "array": group["spread"].fillna(0) / 2 / scale, "thickness": 1, "width": 3},
        hovertemplate=f"{name}, %{{x:,}} tokens: %{{y:.4g}}<extra></extra>",
    )  # fmt: skip
    if failed.any():
        figure.add_scatter(
            x=group.loc[failed, "context"], y=[0] * int(failed.sum()), name=f"{name}: out of memory",
            mode="markers", showlegend=row == 1, row=row, col=1,
            marker={"symbol": "x", "size": 13, "color": style.colour},
            hovertemplate=f"{name}, %{{x:,}} tokens: out of memory<extra></extra>",
        )  # fmt: skip
