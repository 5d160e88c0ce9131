"""Closeness against bytes: the axes show the compressed runs, and every point has its name next to it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.figures.base.point_labels import POINT, overlap, place_labels
from kvlab.figures.compare import MOST_LABELS, closeness_against_bytes

METHODS = ("h2o", "snapkv", "zsmerge", "keepkv", "kvmerger", "gvote", "tova", "kvzip", "d2o", "less")
MIB = 1024**2


def runs(sizes: list[float], kls: list[float], full: float | None = 33.0) -> pd.DataFrame:
    """Live bytes in MiB and mean KL of each compressed run; the full cache first."""
    lines = [] if full is None else [("full cache", "full", full * MIB, 0.0)]
    lines += [
        (f"{METHODS[at % len(METHODS)]} {at} %", METHODS[at % len(METHODS)], size * MIB, kl)
        for at, (size, kl) in enumerate(zip(sizes, kls, strict=True))
    ]
    return pd.DataFrame(lines, columns=["label", "method", "live_bytes", "mean_kl"])


def names(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations if "full cache" not in note.text]


def test_the_runs_fill_the_axes_and_the_full_cache_is_a_mark_at_the_edge():
    figure = closeness_against_bytes(runs([6.5, 6.6, 7.2], [1.0, 0.5, 0.01]))
    low, high = figure.layout.xaxis.range
    assert 6 < low < 6.5 and 7.2 < high < 8
    assert (7.2 - 6.5) / (high - low) > 0.5, "most of the width is between the runs"
    bottom, top = figure.layout.yaxis.range
    assert bottom < -2 and top > 0
    mark = next(note for note in figure.layout.annotations if "full cache" in note.text)
    assert "33 MiB →" in mark.text and mark.x == high
    assert figure.layout.shapes[0].x0 == high
    assert "not from 0" in figure.layout.xaxis.title.text


def test_a_full_cache_among_the_runs_is_a_line_at_its_bytes():
    figure = closeness_against_bytes(runs([10, 40], [0.1, 0.2], full=33))
    mark = next(note for note in figure.layout.annotations if "full cache" in note.text)
    assert mark.x == pytest.approx(33) and "→" not in mark.text
    assert not any(
        "full cache" in note.text for note in closeness_against_bytes(runs([1], [1], None)).layout.annotations
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_point_has_its_name_and_many_have_a_legend(theme: str):
    frame = runs(list(np.linspace(3, 9, 8)), list(np.geomspace(0.01, 3, 8)))
    figure = closeness_against_bytes(frame, theme)
    assert names(figure) == frame["label"].tolist()[1:]
    assert not figure.layout.showlegend
    many = closeness_against_bytes(runs([5.0] * (MOST_LABELS + 1), [0.1] * (MOST_LABELS + 1)), theme)
    assert not names(many) and many.layout.showlegend


def test_one_run_and_a_run_without_kl_are_drawn():
    assert len(names(closeness_against_bytes(runs([6], [0.2])))) == 1
    assert names(closeness_against_bytes(runs([6, 7], [0.2, float("nan")]))) == ["h2o 0 %"]
    low, high = closeness_against_bytes(runs([6], [0.0])).layout.yaxis.range
    assert low < -6 < high, "a KL of 0 is drawn at the floor"


@pytest.mark.parametrize("case", ["one spot", "a row", "a column", "spread", "corners"])
def test_labels_cover_neither_each_other_nor_a_point_and_stay_inside(case: str):
    size, random = (380.0, 290.0), np.random.default_rng(1)
    points = {
        "one spot": [(190.0, 140.0)] * 8,
        "a row": [(100.0 + 12 * at, 40.0) for at in range(8)],
        "a column": [(350.0, 60.0 + 9 * at) for at in range(8)],
        "spread": [(float(x), float(y)) for x, y in random.uniform((20, 20), (360, 270), (10, 2))],
        "corners": [(5.0, 5.0), (375.0, 5.0), (5.0, 285.0), (375.0, 285.0)],
    }[case]
    texts = [f"{METHODS[at]} 20 %" for at in range(len(points))]
    labels = place_labels(points, texts, size)
    boxes = [label.box(point) for label, point in zip(labels, points, strict=True)]
    for one, other in combinations(boxes, 2):
        assert overlap(one, other) == 0
    for left, top, right, bottom in boxes:
        assert left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]
        for x, y in points:
            assert overlap((left, top, right, bottom), (x - POINT, y - POINT, x + POINT, y + POINT)) == 0
