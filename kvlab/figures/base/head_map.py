"""Heat map of layers (rows, layer 0 on top) by KV heads (columns)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import SEQUENTIAL, Theme
from kvlab.figures.base.template import colour_bar, finish


def head_map(
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
    """Draw `table` (layers, heads), coloured from `low` to `high`.

    `bar` is the colour bar's title, `hover` the hover text after layer and head; `cells` are further heat map fields
    for it (`customdata`, `text`). `colours` defaults to the sequential scale.
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
    return integer_ticks(finish(go.Figure(heat), title=title, x="KV head", y="layer", theme=theme, legend=False), table)


def integer_ticks(figure: go.Figure, table: pd.DataFrame) -> go.Figure:
    """Ticks at integer layers and heads only, layer 0 on top."""
    figure.update_xaxes(tickvals=_spread(table.columns.tolist()), showgrid=False)
    return figure.update_yaxes(tickvals=_spread(table.index.tolist()), autorange="reversed", showgrid=False)


def _spread(values: list[int]) -> list[int]:
    return values[:: max(1, -(-len(values) // 16))]
