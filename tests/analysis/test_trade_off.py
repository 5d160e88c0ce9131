"""Points of quality against bytes: the median of a budget, the order of budgets, the frontier, means over prompts."""

from __future__ import annotations

import pandas as pd
import pytest

from kvlab.views.frames.board import OWN_BUDGET
from kvlab.views.frames.repeats import NOT_ASKED, build_batch
from kvlab.views.frames.trade_off import (
    KL,
    SHARE,
    at_budget,
    batch_points,
    best_points,
    compared_budgets,
    run_points,
    unequal_bytes,
)
from tests.analysis.test_repeats import prompt_table


def points(*lines: tuple[str, str, float, float]) -> pd.DataFrame:
    """Method, budget, live bytes and mean KL of each run."""
    table = pd.DataFrame(
        [
            {"label": f"{m} {b}", "method": m, "live_bytes": size, "mean_kl": kl, "prompts": 1}
            for m, b, size, kl in lines
        ]
    )
    return run_points(table, [(method, budget) for method, budget, *_ in lines])


def test_excess_is_over_the_median_of_the_same_budget():
    table = points(
        ("full", OWN_BUDGET, 999, 0), ("gvote", OWN_BUDGET, 500, 0.1), ("a", "20 %", 100, 1), ("b", "20 %", 104, 1),
        ("c", "20 %", 130, 1), ("a", "40 %", 200, 1), ("b", "40 %", 260, 1), ("c", "80 %", 900, 1),
    )  # fmt: skip
    found = unequal_bytes(table)
    assert found[["label", "median"]].values.tolist() == [["c 20 %", 104], ["b 40 %", 230]]
    assert found["excess"].tolist() == pytest.approx([130 / 104 - 1, 260 / 230 - 1])
    assert unequal_bytes(table, tolerance=0.2)["label"].tolist() == ["c 20 %"]


def test_budgets_ascend_by_bytes_and_methods_without_one_are_at_every_budget():
    table = points(
        ("full", OWN_BUDGET, 999, 0), ("a", "8 slots", 90, 1), ("a", "40 %", 200, 1), ("b", "40 %", 210, 1),
        ("a", "5 %", 60, 1),
    )  # fmt: skip
    assert compared_budgets(table) == ["5 %", "8 slots", "40 %"]
    assert at_budget(table, "40 %")["label"].tolist() == [f"full {OWN_BUDGET}", "a 40 %", "b 40 %"]
    assert at_budget(table, "").equals(table)


def test_the_frontier_is_the_least_kl_or_the_largest_share_for_its_bytes():
    table = points(
        ("full", OWN_BUDGET, 99, 0), ("a", "x", 10, 3), ("b", "x", 11, 4), ("c", "x", 12, 1), ("d", "x", 9, 5)
    )
    assert best_points(table)["method"].tolist() == ["d", "a", "c"]
    shares = table.assign(measure=SHARE)
    assert best_points(shares)["method"].tolist() == ["d"]
    assert best_points(shares.assign(quality=0.0)).empty, "a method that is never right is the best of none"
    assert best_points(table.assign(quality=float("nan"))).empty


def test_a_batch_has_a_point_a_cell_and_the_share_of_the_full_cache():
    tables = [
        prompt_table(1, {"h2o": "right", "keepkv": "wrong"}),
        prompt_table(2, {"h2o": "right", "keepkv": "right"}, "wrong"),
        prompt_table(3, {"h2o": "unfinished", "keepkv": "nearly"}),
    ]
    found = batch_points(build_batch(tables)).set_index("method")
    assert found.index.tolist() == ["full", "h2o", "keepkv"]
    assert found["quality"].tolist() == pytest.approx([2 / 3, 1, 1 / 3])
    assert found["prompts"].tolist() == [3, 2, 3]
    assert found.loc["full", "live_bytes"] == pytest.approx(1002)
    assert (found["low"].iloc[1:] < found["quality"].iloc[1:]).all() and found.loc["h2o", "high"] == 1
    assert set(found["measure"]) == {SHARE}


def test_one_prompt_of_a_batch_has_no_interval_and_prompts_without_answers_have_kl():
    one = batch_points(build_batch([prompt_table(1, {"h2o": "right"})]))
    assert one[["low", "high"]].isna().all(axis=None)
    told = dict.fromkeys(("h2o", "keepkv"), NOT_ASKED)
    closeness = batch_points(build_batch([prompt_table(number, told, NOT_ASKED) for number in (1, 2, 3)]))
    assert set(closeness["measure"]) == {KL}
    assert closeness["quality"].tolist() == pytest.approx([0, 0.2, 0.2])
    assert (closeness["low"].iloc[1:] < 0.2).all()
    nothing = batch_points(build_batch([prompt_table(1, {"h2o": "unfinished"}, "unfinished")]))
    assert nothing["method"].tolist() == ["full"]
