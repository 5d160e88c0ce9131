"""A vertical axis of layers, layer 0 on top: height, range and tick labels that fit any depth."""

from __future__ import annotations

from collections.abc import Sequence

ROOMY_ROW, TALLEST_AXIS, SHORTEST_AXIS = 22, 720, 220  # pixels
LABEL = 17  # pixels between two tick labels that can be told apart
MARK = 0.7  # share of a row that a mark may cover, so that the marks of two layers stay apart


def axis_height(layers: Sequence[int]) -> int:
    """Height of the axis in pixels: grows with the layers it spans, up to `TALLEST_AXIS`."""
    return min(TALLEST_AXIS, max(SHORTEST_AXIS, ROOMY_ROW * _span(layers)))


def mark_size(layers: Sequence[int]) -> float:
    """Length in pixels of a vertical mark in the row of one layer."""
    return MARK * axis_height(layers) / _span(layers)


def layer_axis(layers: Sequence[int], pixels: int | None = None) -> dict[str, object]:
    """Axis settings for the layers on an axis of so many pixels (default: `axis_height`).

    The range is fixed, because plotly would widen it for markers and then label layers that do not exist.
    """
    first, last = min(layers), max(layers)
    every = round_distance(LABEL * _span(layers) / (pixels or axis_height(layers)))
    ticks = [layer for layer in range(first, last + 1) if layer % every == 0]
    return {"tickvals": ticks, "range": [last + 0.5, first - 0.5], "autorange": False}


def _span(layers: Sequence[int]) -> int:
    return max(layers) - min(layers) + 1


def round_distance(distance: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is at least `distance`."""
    factor = 1
    while True:
        for step in (1, 2, 5):
            if step * factor >= distance:
                return step * factor
        factor *= 10
