"""Lines, points and areas of a figure, distinguished by colour, dash, marker and pattern."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.palette import HUES, SURFACES, Style, Theme, mix, pick, run_styles


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


def add_points(
    figure: go.Figure, x: Any, y: Any, name: str, colour: Any, hover: str, *, size: Any = 6, **options: object
) -> None:
    """Add points; `hover` is the hover text of a point, `options` are passed to `go.Scatter`."""
    look = {"mode": "markers", "marker_size": size, "marker_color": colour}
    figure.add_scatter(x=x, y=y, name=name, hovertemplate=f"{hover}<extra></extra>", **(look | options))


def add_band(figure: go.Figure, x: pd.Series, low: pd.Series, high: pd.Series, fill: str, name: str = "") -> None:
    """Fill the area between two lines; it is in the legend if it has a name."""
    edge = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=high, showlegend=False, **edge)
    named = {"name": name} if name else {"showlegend": False}
    figure.add_scatter(y=low, fill="tonexty", fillcolor=fill, **named, **edge)


def hatch(shape: str, colour: str, theme: Theme, size: int = 5, pale: float = 0.55) -> dict[str, object]:
    """A pattern in the colour on the same colour faded by `pale`; none for an empty shape."""
    ground = mix(colour, SURFACES[theme], pale)
    return {"shape": shape, "size": size, "fgcolor": colour, "bgcolor": ground} if shape else {}


def interval_bars(frame: pd.DataFrame, column: str = "score") -> dict[str, Any]:
    """Error bars (`error_x` or `error_y`) from `column` to its `_low` and `_high`."""
    mean = frame[column]
    high = frame[f"{column}_high"] - mean
    low = mean - frame[f"{column}_low"]
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
        x=x,
        y=y,
        name=name,
        stackgroup="all",
        mode="lines",
        line={"width": 0.5, "color": colour},
        fillcolor=colour,
        fillpattern=pattern,
        hovertemplate=f"{hover}<extra></extra>",
    )


def styles_of(frame: pd.DataFrame, theme: Theme) -> dict[str, Style]:
    """The style of each run in a frame with columns label and method."""
    return run_styles(frame[["label", "method"]].drop_duplicates().itertuples(index=False, name=None), theme)
