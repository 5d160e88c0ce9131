"""Tables of scores: budgets in order, ties said as ties, compositions named and coloured by what they do."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.results.score_tables import shared_by_all_arms
from kvlab.views import scores
from kvlab.views.base.palette import method_style
from kvlab.views.base.template import LEGEND_ROW, legend_room
from kvlab.views.base.words import arm_text

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
        score_low=frame["score"], score_high=frame["score"], prompts=8,
    )  # fmt: skip


def means(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """A row a group, as the atlas makes them of the prompts; here of a table whose tasks have eight prompts each."""
    groups = frame.groupby(list(by), sort=False)
    found = groups[["score", "difference", "kept"]].mean().assign(tasks=groups["task"].nunique())
    bounds = {
        f"{name}{bound}": found[name] + gap
        for name in ("score", "difference", "kept")
        for bound, gap in (("_low", -0.1), ("_high", 0.1))
    }
    return found.assign(**bounds, prompts=8 * found["tasks"]).reset_index()


def by_arm(frame: pd.DataFrame, panel: str = "task") -> str:
    return scores.caption_score_against_budget(means(shared_by_all_arms(frame), "arm"), panel)


def by_row(frame: pd.DataFrame) -> str:
    return scores.caption_benchmark_table(means(frame, "arm", "method", "asked"))


def test_each_methods_largest_budget_comes_first_and_tasks_are_words():
    figure = scores.benchmark_table(table(h2o=0.2, keepkv=0.3))
    assert list(figure.data[0].y) == ["full cache", "h2o 40 %", "h2o 10 %", "keepkv 40 %", "keepkv 10 %"]
    assert list(figure.data[0].x) == ["key value"]


def test_an_average_over_budgets_where_every_method_fails_is_no_verdict():
    said = by_arm(table(h2o=0.1, keepkv=0.3))
    assert said == (
        "All methods fail here: none reaches a third of the full cache's 1 on average, "
        "the highest 0.3 (0.2 to 0.4, n = 8)."
    )
    assert by_arm(table(h2o=0.1, keepkv=0.34)).startswith("On average, the score is highest with keepkv")


def test_ties_are_not_called_the_best():
    assert "all alike" in by_row(table(h2o=0.0, keepkv=0.0))
    assert "keepkv 10 % and keepkv 40 %" in by_row(table(h2o=0.0, keepkv=0.5))
    alone = table(h2o=0.0, keepkv=0.5)
    alone = alone[~((alone["arm"] == "keepkv") & (alone["budget"] == 0.1))]
    assert by_row(alone).startswith("Best of the compressed caches on average: keepkv 40 % at")


def test_a_composition_is_named_by_its_parts_and_coloured_as_what_settles():
    assert arm_text(MIXED) == "h2o settled by keepkv"
    assert arm_text("keepkv:rule=paper") == "keepkv:rule=paper"
    frame = table(h2o=0.2, **{MIXED: 0.4})
    frame["method"] = frame["method"].replace(MIXED, "compose")
    named = {trace.name: trace for trace in scores.score_against_budget(frame).data}
    assert named["h2o settled by keepkv"].line.color == method_style("keepkv").colour


def test_an_arm_is_placed_where_all_arms_were_evaluated_and_ties_are_ties():
    frame = table(h2o=0.2, keepkv=0.4)
    elsewhere = frame[frame["arm"] == "h2o"].assign(task="needle", score=1.0)
    caption = by_arm(pd.concat([frame, elsewhere]))
    assert caption == (
        "On average, the score is highest with keepkv at 0.4 (0.3 to 0.5, n = 8), and lowest with h2o at 0.2 (0.1 to "
        "0.3, n = 8)."
    )
    assert by_arm(table(h2o=0, keepkv=0)) == "On average, all score the same: 0 (-0.1 to 0.1, n = 8)."
    assert "lowest with h2o at 0 (-0.1 to 0.1, n = 8) and keepkv at 0" in by_arm(table(h2o=0.0, keepkv=0.0, cam=0.5))
    five = by_arm(table(a=0.5, b=0.5, c=0.1, d=0.1, e=0.1, f=0.1))
    assert "highest with a at 0.5 (0.4 to 0.6, n = 8) and b at" in five and five.endswith(" and 2 others.")


def test_without_a_task_that_all_were_given_each_arm_stands_for_itself():
    frame = table(h2o=0.2, keepkv=0.4)
    frame.loc[frame["arm"] == "h2o", "task"] = "needle"
    assert by_arm(frame).startswith("On average, the score is highest with keepkv at 0.4 (0.3 to 0.5, n = 8)")


def test_the_best_value_of_an_option_is_none_where_all_are_alike():
    frame = table(a=0.0, b=0.0, c=0.0).query("method != 'full'").assign(beta=lambda rows: rows["arm"])
    told = scores.caption_score_by_option(means(frame, "asked", "beta"), "beta")
    assert told == "The score does not depend on the beta: 0 (-0.1 to 0.1, n = 8)."
    frame.loc[frame["arm"].isin(["a", "b"]), "score"] = 0.5
    told = scores.caption_score_by_option(means(frame, "asked", "beta"), "beta")
    assert told == "The score is highest with beta a and b at every budget, at most 0.5 (0.4 to 0.6, n = 8)."


@pytest.mark.parametrize(("count", "letters", "rows"), [(3, 6, 0), (14, 45, 12), (14, 10, 3)])
def test_a_legend_of_many_names_adds_height_and_takes_none_from_the_plot(count: int, letters: int, rows: int):
    names = [f"{number:02d}{'x' * (letters - 2)}" for number in range(count)]
    figure = go.Figure([go.Scatter(y=[1], name=name) for name in names for _ in range(2)])
    assert legend_room(figure) == rows * LEGEND_ROW
