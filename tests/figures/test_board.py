"""The board's picture: one card a run in its place, strips that add up, and words that fit their cells."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.views import autopsy
from kvlab.views import board as figures
from kvlab.views.base.palette import FATES, STATE_COLOURS, VERDICTS, pick
from kvlab.views.board import excess_text, verdict_text
from kvlab.views.frames.board import OWN_BUDGET

KINDS = list(VERDICTS)


def a_board(budgets: int, tokens: int, methods: int = 3, words: str = "48214.") -> pd.DataFrame:
    """A frame as `analysis.board.board` makes it; the verdicts take turns."""
    rows = []
    for run in range(methods * budgets):
        method, budget = divmod(run, budgets)
        kind = KINDS[run % len(KINDS)]
        for token in range(max(tokens, 1)):
            share = (run + token) % 5 / 4 if tokens else float("nan")
            rows.append(
                {
                    "run_id": f"run {run}", "label": f"method {method} {10 * budget} %", "row": f"method {method}",
                    "column": f"{10 * (budget + 1)} %", "verdict": kind, "late": False,
                    "at": 1, "wrote": words, "wrong": "4", "expected": " 3", "live_bytes": 2.3e6, "mean_kl": 0.123,
                    "live_ratio": 0.1 * (budget + 1), "kl_answer": 1.23, "position": token if tokens else pd.NA,
                    "text": f" word{token}", "kept": share, "merged": (1 - share) / 2, "dropped": (1 - share) / 2,
                }
            )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.assign(position=frame["position"].astype("Int64"))


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 6), st.integers(0, 80))
def test_every_run_is_a_card_and_its_strip_fills_its_height(budgets: int, tokens: int):
    frame = a_board(budgets, tokens)
    figure = figures.board(frame)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    cards = [trace for trace in bars if trace.name is None]
    named = [told[0] for trace in cards for told in trace.customdata]
    assert sorted(named) == sorted(frame["run_id"].unique()), "a click on a card names its run"
    strips = {trace.name: trace for trace in bars if trace.name}
    heights = sum(-pd.Series(trace.y, dtype=float) for trace in strips.values())
    assert heights.tolist() == pytest.approx([figures.STRIP] * len(heights))
    assert len(heights) == (3 * budgets * min(tokens, figures.MOST_TOKENS))
    for trace in strips.values():
        edges = pd.Series(trace.x, dtype=float) - pd.Series(trace.x, dtype=float).round()
        assert (edges.abs() <= 0.45).all(), "a strip stays in its cell"


@pytest.mark.parametrize("budgets", [1, 2, 3, 4, 6, 8])
def test_words_fit_their_cells(budgets: int):
    figure = figures.board(a_board(budgets, 5, words="a rather long answer that went wrong"))
    room = figures.PAGE_PIXELS * figures.WIDTH / budgets
    if budgets <= 6:  # in more, what does not fit is left to the pointer
        assert len(figure.layout.annotations) == 3 * 3 * budgets
    for words in figure.layout.annotations:
        bare = re.sub("<[^>]*>", "", words.text)
        assert len(bare) * 6.3 <= room, (budgets, bare)


def test_a_long_wrong_answer_has_the_whole_line_of_a_single_column():
    wrote = "… 12, which the keeper wrote above the gate, as all of the town remembers"
    figure = figures.board(a_board(1, 5, words=wrote))
    (told,) = [re.sub("<[^>]*>", "", words.text) for words in figure.layout.annotations if "✗" in words.text]
    assert told.startswith("✗ wrong: … 12, which the keeper wrote above the") and told.endswith("…")
    sizes = [words for words in figure.layout.annotations if "MiB" in words.text]
    lines = [words for words in figure.layout.annotations if words.text.startswith("<b>")]
    assert all(size.y > line.y and size.xanchor == "right" for size, line in zip(sizes, lines, strict=True))


def test_what_restores_an_answer_is_in_its_cell_or_where_there_is_no_room_in_the_hover_text():
    back = "restored by 2 slots in layer 3 head 3"
    for budgets, written in ((1, 1), (3, 0)):
        frame = a_board(budgets, 5)
        plain, told = (
            figures.board(frame.assign(restored=words))
            for words in ("", frame["run_id"].map({"run 0": back}).fillna(""))
        )
        assert [words.text for words in told.layout.annotations].count(back) == written
        assert str(told.to_dict()["data"]).count(back) == 1, "the hover text has it"
        assert back not in str(plain.to_dict())
        room = told.layout.height - plain.layout.height
        assert room == (3 * 18 if written else 0), "a line more in each row"


def test_what_a_run_wrote_is_never_read_as_markup():
    figure = figures.board(a_board(2, 5, words="<b>x</b>"))
    told = [words.text for words in figure.layout.annotations if "wrong" in words.text]
    assert told
    assert not any("<b>x" in text for text in told)


def test_verdicts_in_words():
    def told(**fields: object) -> str:
        whole = {"verdict": "right", "late": False, "at": 1, "wrote": "", "wrong": "", "expected": ""} | fields
        return verdict_text(SimpleNamespace(**whole))

    assert told() == "right"
    assert told(late=True, at=9) == "right, from token 10"
    assert told(verdict="nearly", wrong="4", expected=" 3") == "nearly: 4 for 3"
    assert told(verdict="nearly", wrong="", expected="3") == "nearly: stops before 3"
    assert told(verdict="nearly", wrong="7", expected="") == "nearly: goes on with 7"
    assert told(verdict="wrong", wrote="<b>1 & 2</b>") == "wrong: <b>1 & 2</b>", "plain text, for tables and lists"
    assert told(verdict="wrong") == "wrong: only spaces"
    assert told(verdict="unfinished") == "not finished"


def with_own_budget(budgets: int) -> pd.DataFrame:
    """A board whose last method takes no budget and has one run."""
    frame = a_board(budgets, 5)
    frame = frame[(frame["row"] != "method 2") | (frame["run_id"] == f"run {2 * budgets}")]
    own = frame["row"] == "method 2"
    return frame.assign(column=frame["column"].mask(own, OWN_BUDGET), over_budget=np.where(own, np.nan, 0.14))


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_a_method_without_a_budget_has_a_row_across_all_budgets_and_no_column(budgets: int):
    figure = figures.board(with_own_budget(budgets))
    assert list(figure.layout.xaxis.ticktext) == [f"{10 * (budget + 1)} %" for budget in range(budgets)]
    assert figure.layout.yaxis.ticktext[-1].replace("<br>", " ") == f"method 2 ({OWN_BUDGET})"
    cards = [
        (told[0], x, width, base + figures.WIDTH / 2)
        for trace in figure.data
        if trace.type == "bar" and trace.name is None
        for told, x, width, base in zip(trace.customdata, trace.x, trace.width, trace.base, strict=True)
    ]
    ((_, x, width, row),) = [card for card in cards if card[0] == f"run {2 * budgets}"]
    assert row == pytest.approx(2) and all(card[3] < 1.5 for card in cards if card[0] != f"run {2 * budgets}")
    edge = (1 - figures.WIDTH) / 2
    assert (x - width / 2, x + width / 2) == pytest.approx((-0.5 + edge, budgets - 0.5 - edge))


def test_a_board_of_methods_without_budgets_has_one_column():
    frame = a_board(1, 2).assign(column=OWN_BUDGET)
    assert list(figures.board(frame).layout.xaxis.ticktext) == [OWN_BUDGET]


def test_cells_say_how_far_their_bytes_are_above_the_budget():
    frame = with_own_budget(1)
    told = [words.text for words in figures.board(frame).layout.annotations]
    assert sum("2.19 MiB (+14 %)" in text for text in told) == 2
    assert sum("2.19 MiB (10 % of full)" in text for text in told) == 1, "one that takes no budget is beside the full"
    for share, words in ((0.14, "+14 %"), (0.0486, "+4.9 %"), (-0.7, "-70 %"), (1.2, "+120 %"), (0.0, "+0 %")):
        assert excess_text(share) == words


def test_the_board_says_after_which_step_the_fates_are_taken():
    frame = a_board(2, 5).assign(moment="when the answer was written (after step 7)")
    assert "; when the answer was written (after step 7), of the text" in figures.caption_board(frame)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_fate_has_a_colour_of_its_own_on_maps_of_heads(theme: str):
    """Dark blue was kept on one page and dropped on the other."""
    frame = pd.DataFrame({"layer": [0], "head": [0], "first_lost": [pd.NA], "kept": 0.2, "merged": 0.3, "dropped": 0.5})
    frame.attrs["reader"] = None
    run = SimpleNamespace(record=SimpleNamespace(label="a"))
    scales = {}
    for fate in FATES:
        there, here = figures.fact_by_head(frame, theme, run, fate), autopsy.survival_by_head(frame, theme, fate)
        scales[fate] = there.data[0].colorscale
        assert scales[fate] == here.data[0].colorscale
        assert scales[fate][1][1] == pick(STATE_COLOURS[FATES[fate][1]], theme), "as in the strip of the board"
    assert len({scale[1][1] for scale in scales.values()}) == len(FATES)
    areas = autopsy.fates_over_steps(frame.assign(step=0), theme).data
    assert [area.fillcolor for area in areas] == [scales[fate][1][1] for fate in FATES]
