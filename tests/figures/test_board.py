"""The board's picture: one card a run in its place, strips that add up, and words that fit their cells."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.figures import board as figures

KINDS = list(figures.VERDICTS)


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


def test_what_a_run_wrote_is_never_read_as_markup():
    figure = figures.board(a_board(2, 5, words="<b>x</b>"))
    told = [words.text for words in figure.layout.annotations if "wrong" in words.text]
    assert told
    assert not any("<b>x" in text for text in told)


def test_verdicts_in_words():
    def told(**fields: object) -> str:
        whole = {"verdict": "right", "late": False, "at": 1, "wrote": "", "wrong": "", "expected": ""} | fields
        return figures.verdict_words(SimpleNamespace(**whole))

    assert told() == "right"
    assert told(late=True, at=9) == "right, from token 10"
    assert told(verdict="nearly", wrong="4", expected=" 3") == "nearly: 4 for 3"
    assert told(verdict="nearly", wrong="", expected="3") == "nearly: stops before 3"
    assert told(verdict="nearly", wrong="7", expected="") == "nearly: goes on with 7"
    assert told(verdict="wrong", wrote="<b>1 & 2</b>") == "wrong: <b>1 & 2</b>", "plain text, for tables and lists"
    assert told(verdict="wrong") == "wrong: only spaces"
    assert told(verdict="unfinished") == "not finished"
