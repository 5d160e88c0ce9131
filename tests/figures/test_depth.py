"""Figures by layer and head at the depth and width of real models."""

from __future__ import annotations

import pandas as pd
import pytest

from kvlab.figures import compare, cost, regret
from kvlab.figures.base.layer_axis import LABEL, TALLEST_AXIS, axis_height, layer_axis, mark_size

SHAPES = ((6, 2), (30, 3), (80, 8), (32, 32))
DEPTHS = (1, 6, 30, 32, 80, 126)


def bytes_of(layers: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "layer": range(layers),
            "live": 200.0,
            "slack": 10.0,
            "room": 10.0,
            "padding": 0.0,
            "block": 64.0,
            "full": 999.0,
        }
    )


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_axis_of_layers_shows_the_layers_there_are_with_labels_apart(depth: int):
    axis, height = layer_axis(range(depth)), axis_height(range(depth))
    assert axis["range"] == [depth - 0.5, -0.5]
    assert axis["autorange"] is False
    assert axis["tickvals"][0] == 0
    assert axis["tickvals"][-1] < depth
    row = height / depth
    assert all(row * (b - a) >= LABEL for a, b in zip(axis["tickvals"], axis["tickvals"][1:], strict=False))
    assert height <= TALLEST_AXIS


def test_an_axis_grows_with_the_layers_and_counts_the_ones_left_out():
    heights = [axis_height(range(depth)) for depth in DEPTHS]
    assert heights == sorted(heights)
    assert axis_height(range(30)) > axis_height(range(6))
    assert layer_axis([5, 11, 17, 23])["range"] == [23.5, 4.5]
    assert layer_axis([5, 11, 17, 23], 400)["tickvals"][0] == 5


@pytest.mark.parametrize("depth", DEPTHS)
def test_marks_of_the_uncompressed_bytes_stay_apart(depth: int):
    figure = cost.layer_bytes(bytes_of(depth))
    marks = next(trace for trace in figure.data if trace.name == "uncompressed")
    row = axis_height(range(depth)) / depth
    assert 1.4 * marks.marker.size == pytest.approx(mark_size(range(depth)))
    assert 1.4 * marks.marker.size < 0.8 * row
    assert figure.layout.yaxis.range == (depth - 0.5, -0.5)
    assert figure.layout.height >= axis_height(range(depth))
    right = figure.layout.xaxis.range[1]
    assert max(marks.x) < right < 1.1 * max(marks.x)


@pytest.mark.parametrize("depth", DEPTHS)
def test_other_figures_with_layers_down_have_the_same_axis(depth: int):
    frame = pd.DataFrame({"label": "a", "method": "h2o", "layer": range(depth), "live_slots": 9.0})
    steps = pd.DataFrame(0.1, index=range(depth), columns=range(5))
    for figure in (compare.slots_by_layer(frame), regret.regret_map(steps)):
        assert figure.layout.yaxis.range == (depth - 0.5, -0.5)
        assert set(figure.layout.yaxis.tickvals) <= set(range(depth))
        assert figure.layout.height < 700
