"""Names at the ends of lines: none covers another, none is cut, and no line is pale."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.views import compare
from kvlab.views.base.lines import CHARACTER, GAP, LEAD, LONGEST, End, label_ends, spread
from kvlab.views.base.palette import METHODS

RUNS = [f"{method} 20 %" for method in list(METHODS)[:12]]
PAGE = 30 + 30 + 56  # pixels of a figure on a page that are not plot: its title, and the margins above and below


def text_frame(values: Callable[[int], float], runs: list[str] = RUNS) -> pd.DataFrame:
    """Twelve runs over 30 tokens, each constant over the text."""
    parts = [
        pd.DataFrame({
            "label": label, "method": label.split()[0], "token": range(1, 31), "text": " a", "kl": values(at),
            "agreement": min(values(at), 1.0), "agree": 1.0, "extra_nll": values(at),
        })
        for at, label in enumerate(runs)
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def bytes_frame(values: Callable[[int], float]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"label": label, "method": label.split()[0], "step": range(20), "live_bytes": 1e6 * values(at)})
        for at, label in enumerate(RUNS)
    ]
    return pd.concat(parts, ignore_index=True)


def middles(figure: go.Figure) -> list[float]:
    """The middle of each label in pixels from the top of the plot, on a page."""
    pixels = figure.layout.height - PAGE
    low, high = figure.layout.yaxis.range
    return [pixels * (high - note.y) / (high - low) + note.ay for note in figure.layout.annotations]


SPREADS = {
    "one spot": lambda at: 0.5, "near": lambda at: 0.5 + 0.001 * at, "wide": lambda at: 10.0 ** (at % 6 - 4),
    "two spots": lambda at: 0.9 if at % 2 else 0.001,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "theme"), zip(SPREADS.values(), ["light", "dark"] * 2, strict=True), ids=list(SPREADS)
)
def test_twelve_labels_cover_neither_each_other_nor_the_edge(values: Callable[[int], float], theme: str):
    along = text_frame(values)
    drawn = [
        compare.kl_along_text(along, theme), compare.agreement_along_text(along, theme),
        compare.extra_nll_along_text(along, theme), compare.memory_over_steps(bytes_frame(values), theme=theme),
    ]  # fmt: skip
    for figure in drawn:
        expected = [label for label in RUNS if label.split()[0] != "full" or "Bytes" in figure.layout.title.text]
        assert [note.text for note in figure.layout.annotations] == expected
        placed = middles(figure)
        assert all(lower - upper >= GAP - 1e-6 for upper, lower in pairwise(sorted(placed)))
        assert min(placed) > -GAP and max(placed) < figure.layout.height - PAGE + GAP
        assert figure.layout.margin.r >= LEAD + CHARACTER * max(map(len, expected))
        assert figure.layout.xaxis.range[1] < 1.05 * max(figure.data[0].x), "the axis is not widened for labels"


def test_all_lines_have_full_strength_and_no_legend():
    figure = compare.kl_along_text(text_frame(lambda at: 0.1 * (at + 1)))
    assert {trace.opacity for trace in figure.data} == {None}
    assert {trace.line.width for trace in figure.data} == {1.8}
    assert figure.layout.showlegend is False
    assert figure.layout.meta["lines"] == [trace.name for trace in figure.data], "for the page, which fades the others"


def test_a_label_is_next_to_the_end_of_its_line_unless_it_has_to_move():
    figure = compare.extra_nll_along_text(text_frame(lambda at: float(at), RUNS[:4]))
    assert [note.ay for note in figure.layout.annotations] == pytest.approx([0, 0, 0], abs=1e-6)
    assert [note.y for note in figure.layout.annotations] == [1, 2, 3]
    assert {note.x for note in figure.layout.annotations} == {30}


def test_runs_with_equal_slots_are_one_line():
    slots = {"full": 100.0, "h2o": 20.0, "snapkv": 20.1, "keepkv": 25.0}
    frame = pd.DataFrame(
        [
            {"label": label, "method": label, "layer": layer, "live_slots": count}
            for label, count in slots.items()
            for layer in range(3)
        ]
    )
    figure = compare.slots_by_layer(frame)
    assert [trace.name for trace in figure.data] == ["full", "h2o and 1 equal run", "keepkv"]
    assert "h2o<br>snapkv" in figure.data[1].hovertemplate


def test_places_keep_their_order_and_distance():
    random = np.random.default_rng(3)
    for count in (1, 2, 5, 12):
        wanted = random.uniform(-20, 220, count).tolist()
        placed = spread(wanted, 15, 0, 200)
        order = np.argsort(wanted, kind="stable")
        sorted_places = np.array(placed)[order]
        assert (np.diff(sorted_places) >= 15 - 1e-9).all()
        assert sorted_places[0] >= 0 and sorted_places[-1] <= 200 + 1e-9
    assert spread([10, 100], 15, 0, 200) == [10, 100], "what is free stays"
    assert spread([50, 50], 20, 0, 200) == [40, 60], "two on one spot move equally"
    assert spread([], 15, 0, 200) == []
    assert spread([1.0] * 5, 15, 0, 20) == [0, 5, 10, 15, 20], "too many share what there is"


def test_a_long_name_is_cut_in_the_middle():
    names = [*(f"keepkv 20 % merge_threshold=0.{digit}" for digit in (8, 9)), "h2o"]
    figure = go.Figure(layout={"height": 300}).add_scatter(x=[0, 1], y=[0, 1])
    label_ends(figure, [End(name, 1.0, 0.3 * place, "#000000") for place, name in enumerate(names)], (0, 1), "light")
    one, other, short = (label.text for label in figure.layout.annotations)
    assert len(one) == LONGEST
    assert one != other
    assert one.startswith("keepkv 20 %") and one.endswith("0.8")
    assert short == "h2o"
