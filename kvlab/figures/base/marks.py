"""What marks a figure has: whether it has a colour bar, and whether all its lines lie on one."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

UNSEEN = 1e-3  # what differs by less lies on one line


def has_colour_bar(figure: go.Figure) -> bool:
    """Whether a bar of colours stands beside the figure."""
    maps = any(trace.type in ("heatmap", "histogram2d") and trace.showscale is not False for trace in figure.data)
    marks = any(trace.type == "scatter" and bool(trace.marker.showscale) for trace in figure.data)
    return maps or marks or figure.layout.coloraxis.colorscale is not None


def same_lines(figure: go.Figure) -> int:
    """How many lines the figure has, where they are more than one and all the same; else 0."""
    lines = [trace for trace in figure.data if trace.type == "scatter" and "lines" in (trace.mode or "")]
    if len(lines) < 2 or len(lines) < len(figure.data):
        return 0
    first = lines[0]
    return len(lines) if all(_same(first.x, line.x) and _same(first.y, line.y) for line in lines[1:]) else 0


def _same(one: object, other: object) -> bool:
    if one is None or other is None:
        return False
    first, second = np.asarray(one), np.asarray(other)
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        return bool(np.allclose(first, second, rtol=UNSEEN, atol=0, equal_nan=True))
    return bool(np.array_equal(first, second))
