"""Figures by layer and head at the depth and width of real models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.views import autopsy, board, bound, compare, decision, heads, memory, merges, regret, sag
from kvlab.views.base.head_map import (
    LARGEST,
    SMALLEST,
    TALLEST,
    WHOLE,
    caption_focus,
    cell_size,
    head_map,
    takes_whole_width,
)
from kvlab.views.base.template import LABEL, MARK, TALLEST_AXIS, axis_height, layer_axis, same_cells

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
    assert all(row * (b - a) >= LABEL for a, b in pairwise(axis["tickvals"]))
    assert height <= TALLEST_AXIS


def test_an_axis_grows_with_the_layers_and_counts_the_ones_left_out():
    heights = [axis_height(range(depth)) for depth in DEPTHS]
    assert heights == sorted(heights)
    assert axis_height(range(30)) > axis_height(range(6))
    assert layer_axis([5, 11, 17, 23])["range"] == [23.5, 4.5]
    assert layer_axis([5, 11, 17, 23], 400)["tickvals"][0] == 5


@pytest.mark.parametrize("depth", DEPTHS)
def test_marks_of_the_uncompressed_bytes_stay_apart(depth: int):
    figure = memory.layer_bytes(bytes_of(depth))
    marks = next(trace for trace in figure.data if trace.name == "uncompressed")
    row = axis_height(range(depth)) / depth
    assert 1.4 * marks.marker.size == pytest.approx(MARK * row)
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


def by_head(layers: int, count: int) -> pd.DataFrame:
    """Frame with the columns that maps of heads use."""
    places = [(layer, head) for layer in range(layers) for head in range(count)]
    frame = pd.DataFrame(places, columns=["layer", "head"])
    rank = np.arange(len(frame))
    shares = ("sag", "regret", "kept", "merged", "dropped", "bounded", "merged_share")
    numbers = dict.fromkeys(shares, rank / len(frame))
    counts = dict.fromkeys(("evict", "merge", "pool", "live_slots", "slots"), rank)
    return frame.assign(**numbers, **counts, needed=rank + 2, first_lost=pd.NA, epsilon=0.5, group=rank % 4)


def fact_map(frame: pd.DataFrame, theme: str, focus: tuple[int, int] | None) -> go.Figure:
    frame.attrs["reader"] = focus and {"layer": focus[0], "head": focus[1]}
    return board.fact_by_head(frame, theme, SimpleNamespace(record=SimpleNamespace(label="a")))


Draw = Callable[..., go.Figure]
MAPS: dict[str, Draw] = {
    "memory": memory.slots_by_head,
    "merges": merges.events_by_head,
    "sag": lambda frame, theme="light", focus=None: sag.measure_by_head(frame, theme, "regret", focus),
    "bound": lambda frame, theme="light", focus=None: bound.bound_by_head(frame, theme, "epsilon", focus),
    "autopsy": lambda frame, theme="light", focus=None: autopsy.survival_by_head(frame, theme, "kept", focus),
    "decision": decision.draw_budgets,
    "heads": heads.groups_by_head,
    "board": lambda frame, theme="light", focus=None: fact_map(frame, theme, focus),
}


@pytest.mark.parametrize(("layers", "count"), SHAPES)
@pytest.mark.parametrize("name", MAPS)
def test_a_map_of_heads_has_layers_across_square_cells_and_the_head_in_focus(name: str, layers: int, count: int):
    focus = (layers - 2, count - 1)
    figure = MAPS[name](by_head(layers, count), focus=focus)
    heat, cell = figure.data[0], cell_size(layers, count)
    assert np.shape(heat.z) == (count, layers)
    assert list(heat.x) == [str(layer) for layer in range(layers)]
    assert list(heat.y) == [str(head) for head in range(count)]
    assert figure.layout.meta["go"] == {"x": "layer", "y": "head"}
    assert figure.layout.yaxis.scaleanchor == "x"
    assert figure.layout.xaxis.range == (-0.5, layers - 0.5)
    assert figure.layout.yaxis.range == (count - 0.5, -0.5)
    assert cell * count < figure.layout.height < cell * count + 170
    assert cell * layers <= WHOLE
    for labels, side in ((figure.layout.xaxis.tickvals, 8 * len(str(layers))), (figure.layout.yaxis.tickvals, LABEL)):
        places = [int(label) for label in labels]
        assert all(cell * (b - a) >= side for a, b in pairwise(places))
    outlined = {(shape.x0, shape.x1, shape.y0, shape.y1) for shape in figure.layout.shapes}
    assert outlined == {(focus[0] - 0.5, focus[0] + 0.5, focus[1] - 0.5, focus[1] + 0.5)}
    assert not MAPS[name](by_head(layers, count)).layout.shapes


def test_cells_stay_of_a_sensible_size():
    for layers, count in (*SHAPES, (1, 1), (126, 8), (16, 32), (200, 64)):
        cell = cell_size(layers, count)
        assert SMALLEST <= cell <= LARGEST
        assert cell * count <= max(TALLEST, SMALLEST * count)
    assert cell_size(30, 3) > cell_size(80, 8)
    assert takes_whole_width(30) and not takes_whole_width(16)


@pytest.mark.parametrize(("layers", "count"), SHAPES)
def test_digits_of_the_groups_are_on_cells_with_room_and_else_on_the_colour_bar(layers: int, count: int):
    frame = by_head(layers, count)
    figure, cell = heads.groups_by_head(frame), cell_size(layers, count)
    written = [trace for trace in figure.data if trace.type == "scatter"]
    assert bool(written) == (cell >= 14)
    assert figure.data[0].showscale == (not written)
    assert written or list(figure.data[0].colorbar.ticktext) == ["1", "2", "3", "4"]
    for trace in written:
        told = {(int(x), int(y)): text for x, y, text in zip(trace.x, trace.y, trace.text, strict=True)}
        assert told == {(row.layer, row.head): str(row.group + 1) for row in frame.itertuples()}
        assert trace.textfont.size <= cell - 2


def test_text_needs_room():
    for layers, word, fits in ((67, "1", False), (62, "1", True), (12, "1234", False), (8, "1234", True)):
        words = np.full((layers, 1), word, object)
        drawn = head_map(pd.DataFrame(np.zeros((layers, 1))), "", "light", bar="", hover="", words=words)
        assert (len(drawn.data) == 2) == fits, (cell_size(layers, 1), word)


def test_cells_and_their_hover_text_stay_together_and_layers_without_a_recording_leave_no_gap():
    table = pd.DataFrame([[1.0, 2.0], [3.0, 4.0], [5.0, np.nan]], index=[5, 11, 17], columns=[0, 1])
    told = np.array([["5/0", "5/1"], ["11/0", "11/1"], ["17/0", "17/1"]])
    figure = head_map(table, "a", "light", bar="b", hover=": %{text}", text=told, focus=(11, 1))
    heat = figure.data[0]
    assert heat.type == "heatmap" and figure.layout.xaxis.type == "category"
    assert [f"{layer}/{head}" for head in heat.y for layer in heat.x] == np.ravel(heat.text).tolist()
    assert np.asarray(heat.z)[1].tolist()[:2] == [2.0, 4.0]
    assert {(shape.x0, shape.y0) for shape in figure.layout.shapes} == {(0.5, 0.5)}
    assert not head_map(table, "a", "light", bar="b", hover="", focus=(6, 0)).layout.shapes


def test_a_caption_says_which_head_is_outlined():
    figure = memory.slots_by_head(by_head(6, 2), focus=(3, 1))
    assert caption_focus("Told.", figure, (3, 1)) == "Told. Outlined: layer 3, head 1, the head in view."
    assert caption_focus("Told.", figure, None) == "Told."
    same = memory.slots_by_head(by_head(6, 2).assign(live_slots=7))
    assert caption_focus("Told.", same, (3, 1)) == "Told.", "a map of one colour is not drawn"


def test_a_map_of_one_colour_is_known():
    frame = by_head(6, 2)
    assert same_cells(heads.groups_by_head(frame.assign(group=0))) == 12
    assert not same_cells(heads.groups_by_head(frame))
    assert not same_cells(memory.slots_by_head(by_head(1, 1))), "one cell"
    missing = np.where(frame["layer"] == 2, np.nan, 5.0)
    assert not same_cells(memory.slots_by_head(frame.assign(live_slots=missing))), "a gap says something"
    assert not same_cells(memory.layer_bytes(bytes_of(6)))
