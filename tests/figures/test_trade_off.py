"""Quality against bytes: the axes show the compressed runs, and every point has its name next to it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.views.base.lines import POINT, overlap, place_labels
from kvlab.views.frames.board import OWN_BUDGET
from kvlab.views.frames.trade_off import run_points
from kvlab.views.trade_off import (
    MOST_LABELS,
    caption_quality_against_bytes,
    caption_unequal_bytes,
    quality_against_bytes,
)

METHODS = ("h2o", "snapkv", "zsmerge", "keepkv", "kvmerger", "gvote", "tova", "kvzip", "d2o", "less")
MIB = 1024**2


def runs(sizes: list[float], kls: list[float], full: float | None = 33.0) -> pd.DataFrame:
    """Live bytes in MiB and mean KL of each compressed run; the full cache first."""
    lines = [] if full is None else [("full cache", "full", full * MIB, 0.0)]
    lines += [
        (f"{METHODS[at % len(METHODS)]} {at} %", METHODS[at % len(METHODS)], size * MIB, kl)
        for at, (size, kl) in enumerate(zip(sizes, kls, strict=True))
    ]
    table = pd.DataFrame(lines, columns=["label", "method", "live_bytes", "mean_kl"]).assign(prompts=1)
    return run_points(table, [(label, "20 %" if label != "full cache" else OWN_BUDGET) for label in table["label"]])


def budgets(verdict: str = "right") -> pd.DataFrame:
    """Two methods at three budgets, and the full cache."""
    lines = [("full cache", "full", 33 * MIB, 0.0, "right", ("full", OWN_BUDGET))]
    lines += [
        (f"{method} {share} %", method, share * MIB / 10, 1.0 / share + extra, verdict, (method, f"{share} %"))
        for method, extra in (("h2o", 0.1), ("keepkv", 0.0))
        for share in (40, 10, 20)
    ]
    table = pd.DataFrame([line[:5] for line in lines], columns=["label", "method", "live_bytes", "mean_kl", "verdict"])
    return run_points(table.assign(prompts=1), [line[5] for line in lines])


def dots(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.name != "Pareto frontier"}


def names(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations if "full cache" not in note.text]


def test_the_runs_fill_the_axes_and_the_full_cache_is_a_mark_at_the_edge():
    figure = quality_against_bytes(runs([6.5, 6.6, 7.2], [1.0, 0.5, 0.01]))
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
    figure = quality_against_bytes(runs([10, 40], [0.1, 0.2], full=33))
    mark = next(note for note in figure.layout.annotations if "full cache" in note.text)
    assert mark.x == pytest.approx(33) and "→" not in mark.text
    assert not any("full cache" in note.text for note in quality_against_bytes(runs([1], [1], None)).layout.annotations)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_point_has_its_name_and_many_have_a_legend(theme: str):
    frame = runs(list(np.linspace(3, 9, 8)), list(np.geomspace(0.01, 3, 8)))
    figure = quality_against_bytes(frame, theme)
    assert names(figure) == frame["label"].tolist()[1:]
    assert not figure.layout.showlegend
    many = quality_against_bytes(runs([5.0] * (MOST_LABELS + 1), [0.1] * (MOST_LABELS + 1)), theme)
    assert not names(many) and many.layout.showlegend


def test_one_run_and_a_run_without_kl_are_drawn():
    assert len(names(quality_against_bytes(runs([6], [0.2])))) == 1
    assert names(quality_against_bytes(runs([6, 7], [0.2, float("nan")]))) == ["h2o 0 %"]
    low, high = quality_against_bytes(runs([6], [0.0])).layout.yaxis.range
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


def test_one_prompt_is_said_in_the_title_and_no_dot_has_an_interval():
    points = runs([6.5, 6.6], [1.0, 0.5])
    figure = quality_against_bytes(points)
    assert figure.layout.title.text == "Quality against bytes: one prompt, one dot per run"
    assert all(trace.error_y.array is None for trace in figure.data)


def test_budgets_of_a_method_are_one_line_from_the_smallest_on():
    drawn = dots(quality_against_bytes(budgets()))
    assert list(drawn) == ["h2o", "keepkv"]
    for trace in drawn.values():
        assert list(trace.x) == [1, 2, 4]
        assert "lines" in trace.mode
    assert not [trace for trace in quality_against_bytes(budgets()).data if trace.name == "Pareto frontier"]


def test_a_budget_fills_and_names_its_points_and_leaves_the_axes():
    everything, chosen = (quality_against_bytes(budgets("wrong"), budget=budget) for budget in ("", "20 %"))
    assert everything.layout.xaxis.range == chosen.layout.xaxis.range
    assert everything.layout.yaxis.range == chosen.layout.yaxis.range
    assert len(names(everything)) == 6
    assert names(chosen) == ["✗ keepkv", "✗ h2o"] or names(chosen) == ["✗ h2o", "✗ keepkv"]
    for trace in dots(chosen).values():
        assert [symbol.endswith("-open") for symbol in trace.marker.symbol] == [True, False, True]
        assert trace.marker.size[1] > trace.marker.size[0] == trace.marker.size[2]
    caption = caption_quality_against_bytes(budgets("wrong"), "20 %")
    assert caption.startswith("No run has a right answer; closest to the full cache: keepkv (")


def test_shares_of_right_answers_are_better_upwards_with_their_intervals():
    points = budgets().assign(measure="share", prompts=12, verdict="")
    points["quality"] = [11 / 12, *([0.25, 0.0, 0.1] * 2)]
    points["low"], points["high"] = points["quality"] - 0.1, points["quality"] + 0.2
    figure = quality_against_bytes(points)
    low, high = figure.layout.yaxis.range
    assert low < 0 and high > 1 and figure.layout.yaxis.type != "log"
    assert "higher is better" in figure.layout.yaxis.title.text
    assert "means over 12 prompts" in figure.layout.title.text
    for trace in dots(figure).values():
        assert list(trace.error_y.array) == pytest.approx([0.2] * 3)
    assert any("91.7 % right" in note.text for note in figure.layout.annotations)
    caption = caption_quality_against_bytes(points)
    assert caption.startswith("Most often right: h2o 40 % (")
    one = dots(quality_against_bytes(points, budget="20 %"))["h2o"]
    assert np.isnan(one.error_y.array[0]) and one.error_y.array[1] == pytest.approx(0.2), "bars of one budget only"
    assert "No run has a right answer" in caption_quality_against_bytes(points.assign(quality=0.0))


def test_who_holds_more_bytes_than_the_median_is_said():
    sizes = runs([2.0, 2.02, 2.04, 2.29, 2.33], [1.0] * 5)
    said = caption_unequal_bytes(sizes)
    assert (
        said
        == "Not at equal bytes: kvmerger 4 % (2.33 MiB) and keepkv 3 % (2.29 MiB) hold more than most at their budget."
    )
    assert caption_unequal_bytes(runs([2.0, 2.05, 2.1], [1.0] * 3)) == "", "within 5 % of the median"
    assert caption_unequal_bytes(runs([2.0], [1.0])) == "", "one method has nothing to compare with"
