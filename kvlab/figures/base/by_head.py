"""A map of layers (down, the first on top) and KV heads (across): one colour a head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import SEQUENTIAL, Theme
from kvlab.figures.base.template import colour_bar, finish


def map_of_heads(
    table: pd.DataFrame,
    title: str,
    theme: Theme,
    *,
    bar: str,
    hover: str,
    low: float = 0.0,
    high: float = 1.0,
    colours: Any = None,
    tickformat: str = "",
    **cells: np.ndarray,
) -> go.Figure:
    """The map of `table` (layers, heads), coloured from `low` to `high`.

    `bar` says what the colours mean, `hover` what a head says behind its place; `cells` are what it may say besides
    (`customdata`, `text`). `colours` are a colour scale, none the sequential one.
    """
    heat = go.Heatmap(
        z=table.to_numpy(np.float32),
        x=table.columns.to_numpy(),
        y=table.index.to_numpy(),
        xgap=1,
        ygap=1,
        zmin=low,
        zmax=high,
        colorscale=SEQUENTIAL[theme] if colours is None else colours,
        colorbar=colour_bar(bar, theme, **({"tickformat": tickformat} if tickformat else {})),
        hovertemplate=f"layer %{{y}}, head %{{x}}{hover}<extra></extra>",
        **cells,
    )
    return whole_numbers(finish(go.Figure(heat), title=title, x="KV head", y="layer", theme=theme, legend=False), table)


def whole_numbers(figure: go.Figure, table: pd.DataFrame) -> go.Figure:
    """Axis ticks at layers and heads only, layer 0 on top."""
    figure.update_xaxes(tickvals=_spread(table.columns.tolist()), showgrid=False)
    return figure.update_yaxes(tickvals=_spread(table.index.tolist()), autorange="reversed", showgrid=False)


def _spread(values: list[int]) -> list[int]:
    return values[:: max(1, -(-len(values) // 16))]
