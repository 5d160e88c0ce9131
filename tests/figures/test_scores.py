"""Tables of scores: budgets in order, ties said as ties, compositions named and coloured by what they do."""

from __future__ import annotations

import pandas as pd

from kvlab.figures import scores
from kvlab.figures.palette import method_style

MIXED = "compose:score=h2o:select=h2o:settle=keepkv"


def table(**scored: float) -> pd.DataFrame:
    rows = [
        ("full", "full", 1.0, 1.0),
        *((name, name, budget, scored[name]) for name in scored for budget in (0.1, 0.4)),
    ]
    frame = pd.DataFrame(rows, columns=["arm", "method", "budget", "score"])
    asked = ["all", *(f"{100 * budget:g} %" for budget in frame["budget"][1:])]
    return frame.assign(
        task="key_value", asked=asked, kept=frame["budget"], difference=frame["score"] - 1,
        score_low=frame["score"], score_high=frame["score"],
    )  # fmt: skip


def test_each_methods_largest_budget_comes_first_and_tasks_are_words():
    figure = scores.benchmark_table(table(h2o=0.2, keepkv=0.3))
    assert list(figure.data[0].y) == ["full cache", "h2o 40 %", "h2o 10 %", "keepkv 40 %", "keepkv 10 %"]
    assert list(figure.data[0].x) == ["key value"]


def test_ties_are_not_called_the_best():
    assert "All 4 compressed rows score the same" in scores.read_benchmark_table(table(h2o=0.0, keepkv=0.0))
    assert "2 rows share the best mean" in scores.read_benchmark_table(table(h2o=0.0, keepkv=0.5))
    alone = table(h2o=0.0, keepkv=0.5)
    alone = alone[~((alone["arm"] == "keepkv") & (alone["budget"] == 0.1))]
    assert scores.read_benchmark_table(alone).startswith("keepkv 40 % has the best mean")


def test_a_composition_is_named_by_its_parts_and_coloured_as_what_settles():
    assert scores.arm_words(MIXED) == "h2o settled by keepkv"
    assert scores.arm_words("keepkv:rule=paper") == "keepkv:rule=paper"
    frame = table(h2o=0.2, **{MIXED: 0.4})
    frame["method"] = frame["method"].replace(MIXED, "compose")
    named = {trace.name: trace for trace in scores.score_against_budget(frame).data}
    assert named["h2o settled by keepkv"].line.color == method_style("keepkv").colour
