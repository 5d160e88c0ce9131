"""One line among several, told from the others by its colour, its dash and, where it has one, its marker."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go


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
