"""Lines of a figure, distinguished by colour, dash and (optionally) marker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import HUES, Theme, pick


class Line(NamedTuple):
    """A column of a frame with its line's name and style."""

    column: str
    name: str
    hue: str
    dash: str
    marker: str = ""


def add_lines(
    figure: go.Figure,
    x: pd.Series,
    frame: pd.DataFrame,
    lines: Iterable[Line],
    theme: Theme,
    hover: str,
    **options: Any,
) -> go.Figure:
    """Add a line for each of `lines`; `{name}` in `hover` is its name, `options` are those of `add_line`."""
    for column, name, hue, dash, marker in lines:
        text = hover.replace("{name}", name)
        add_line(figure, x, frame[column], name, pick(HUES[hue], theme), dash, text, marker=marker, **options)
    return figure


def add_line(
    figure: go.Figure,
    x: pd.Series,
    y: pd.Series,
    name: str,
    colour: str,
    dash: str,
    hover: str,
    *,
    marker: str = "",
    size: int = 6,
    width: float = 1.8,
    **options: object,
) -> None:
    """Add a line; `hover` is the hover text of a point, `options` are passed to `go.Scatter`."""
    points = {"mode": "lines+markers", "marker": {"symbol": marker, "size": size, "color": colour}}
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        line={"color": colour, "dash": dash, "width": width},
        hovertemplate=f"{hover}<extra></extra>",
        **({"mode": "lines"} | (points if marker else {}) | options),
    )


def interval_bars(frame: pd.DataFrame, column: str = "score") -> dict[str, Any]:
    """Error bars (`error_x` or `error_y`) from `column` to its `_low` and `_high`."""
    mean = frame[column]
    high, low = frame[f"{column}_high"] - mean, mean - frame[f"{column}_low"]
    return {"type": "data", "array": high, "arrayminus": low, "thickness": 1.2, "width": 3}


def add_area(
    figure: go.Figure,
    x: pd.Series,
    y: pd.Series,
    name: str,
    colour: str,
    hover: str,
    pattern: dict[str, object] | None = None,
) -> None:
    """Stack an area on those already added; `hover` is its hover text."""
    figure.add_scatter(
        x=x, y=y, name=name, stackgroup="all", mode="lines", line={"width": 0.5, "color": colour}, fillcolor=colour,
        fillpattern=pattern, hovertemplate=f"{hover}<extra></extra>",
    )  # fmt: skip
