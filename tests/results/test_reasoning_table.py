"""The preset `reasoning`: as many slots at most for every method, and its table against plain sums."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation.request_parser import BUFFER, reasoning_choices
from kvlab.evaluation.results.rows import ROWS
from kvlab.results.part_tables import reasoning_table
from tests.papers.test_scores import row


def test_a_buffer_counts_as_slots() -> None:
    choices, notes = reasoning_choices("mini", "48,96")
    assert not notes and "mini" in {one.hyper_parameters.get("queries") for one in choices}
    budgets = {(one.method, one.budget) for one in choices}
    buffered = {"rkv", "snapkv", "lazyeviction", "triattention"}
    assert budgets == {(name, most - BUFFER) for name in buffered for most in (48, 96)} | {
        (name, most) for name in ("h2o", "raas", "morphkv") for most in (48, 96)
    }
    choices, _ = reasoning_choices("mini", "48", "rkv:buffer=4,rkv:decode=keep")
    assert [one.budget for one in choices] == [44, 48]


def test_what_the_preset_cannot_do_is_one_sentence() -> None:
    choices, (note,) = reasoning_choices("gpt2", "48")
    assert "triattention" not in {one.method for one in choices} and "needs statistics of gpt2" in note
    with pytest.raises(UserError, match=r"takes --budgets in slots, such as 48,96, not '0.2'"):
        reasoning_choices("mini", "0.2", "h2o")
    with pytest.raises(UserError, match=r"20 slots leave rkv too little beside its buffer of 16 .* at least 32"):
        reasoning_choices("mini", "20", "rkv:buffer=16")


def test_length_and_loops_stand_beside_right_and_wrong() -> None:
    full, other = [(1.0, 10, 0), (1.0, 20, 0), (0.0, 30, 4)], [(1.0, 20, 0), (0.5, 60, 8), (0.0, 15, 0)]
    settings = {"rkv": json.dumps({"buffer": 16, "decode": "budget"}), "full": "{}"}
    rows = []
    for method, found in (("full", full), ("rkv", other)):
        for index, (value, tokens, loop) in enumerate(found):
            named = {
                "budget": 32.0 if method == "rkv" else 1.0,
                "key": f"{method}/{index}",
                "settings": settings[method],
            }
            unit = {"budget_unit": "slots" if method == "rkv" else "fraction"}
            rows.append(
                row("walk", method, value, index) | named | unit | {"answer_tokens": tokens, "loop_tokens": loop}
            )
    table = reasoning_table(pd.DataFrame(rows, columns=ROWS.names)).set_index("method")
    assert table["most_slots"].fillna(0).to_dict() == {"full": 0, "rkv": 48}
    mine = table.loc["rkv"]
    assert (mine["samples"], mine["score"], mine["right"]) == (3, 0.5, 1) and mine["informative"]
    assert mine["tokens"] == pytest.approx(95 / 3) and mine["longer"] == pytest.approx((2 + 3 + 0.5) / 3)
    assert mine["tokens_right"] == 20 and mine["tokens_wrong"] == pytest.approx(37.5)
    assert mine["loops"] == pytest.approx(1 / 3) and mine["loops_wrong"] == 0.5
    assert table.loc["full", "loops_wrong"] == 1 and table.loc["full", "longer"] == 1
    assert reasoning_table(pd.DataFrame([row("walk", "full", 1.0, 0)], columns=ROWS.names)).empty
