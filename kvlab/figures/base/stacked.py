"""Areas on top of each other, each with a colour and, where one is given, a pattern of its own."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go


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
