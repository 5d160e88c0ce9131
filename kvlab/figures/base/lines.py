"""Lines of a figure, told from one another by their colours, their dashes and, where they have some, their markers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import HUES, Theme, pick


class Line(NamedTuple):
    """A column of a frame, the name of its line, and what tells that line from the others."""

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
    """The same figure with a line for each of `lines`; `{name}` in `hover` is its name, `options` as of `add_line`."""
    for column, name, hue, dash, marker in lines:
        said = hover.replace("{name}", name)
        add_line(figure, x, frame[column], name, pick(HUES[hue], theme), dash, said, marker=marker, **options)
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
    """Add the line to `figure`; `hover` is what a point says, `options` are further ones of `go.Scatter`."""
    points = {"mode": "lines+markers", "marker": {"symbol": marker, "size": size, "color": colour}}
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        line={"color": colour, "dash": dash, "width": width},
        hovertemplate=f"{hover}<extra></extra>",
        **({"mode": "lines"} | (points if marker else {}) | options),
    )


def add_area(
    figure: go.Figure,
    x: pd.Series,
    y: pd.Series,
    name: str,
    colour: str,
    hover: str,
    pattern: dict[str, object] | None = None,
) -> None:
    """Add an area above those there; `hover` is its hover template without the rest of the box."""
    figure.add_scatter(
        x=x, y=y, name=name, stackgroup="all", mode="lines", line={"width": 0.5, "color": colour}, fillcolor=colour,
        fillpattern=pattern, hovertemplate=f"{hover}<extra></extra>",
    )  # fmt: skip
