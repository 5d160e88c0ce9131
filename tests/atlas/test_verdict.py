"""A verdict is decided by an interval over prompts, and never by few of them."""

from __future__ import annotations

import pandas as pd
import pytest

from kvlab.atlas.evidence import basis_of, interval_of, over_prompts
from kvlab.common.intervals import Interval
from kvlab.results.verdict import (
    FAILS,
    HOLDS,
    LEAST_PROMPTS,
    OPEN,
    Basis,
    Threshold,
    combine_verdicts,
    judge,
    judge_universal,
)

MORE, LESS = Threshold(0.5, "a reason"), Threshold(0.5, "a reason", at_most=True)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [(0.6, 0.9, HOLDS, FAILS), (0.1, 0.4, FAILS, HOLDS), (0.4, 0.6, OPEN, OPEN), (0.5, 0.9, OPEN, OPEN)],
)
def test_the_whole_interval_has_to_lie_on_one_side(low: float, high: float, at_least: str, at_most: str):
    found = Interval((low + high) / 2, low, high, LEAST_PROMPTS)
    assert MORE.side(found) == at_least
    assert LESS.side(found) == at_most


def test_few_prompts_decide_nothing_however_clear_they_are():
    """With n on one side of a line by chance in 2 / 2^n cases, six is the first n below one in twenty."""
    assert 2 / 2**LEAST_PROMPTS < 0.05 <= 2 / 2 ** (LEAST_PROMPTS - 1)
    assert MORE.side(Interval(0.9, 0.9, 0.9, LEAST_PROMPTS - 1)) == OPEN
    assert MORE.side(None) == OPEN


def test_a_claim_in_parts_fails_with_one_and_holds_with_all():
    assert combine_verdicts([HOLDS, HOLDS]) == HOLDS
    assert combine_verdicts([HOLDS, OPEN]) == OPEN
    assert combine_verdicts([OPEN, FAILS, HOLDS]) == FAILS
    assert combine_verdicts([]) == OPEN


def test_one_exception_refutes_always_and_silence_of_few_prompts_proves_nothing():
    assert judge_universal(1, Basis(prompts=1)) == FAILS
    assert judge_universal(0, Basis(prompts=LEAST_PROMPTS)) == HOLDS
    assert judge_universal(0, Basis(prompts=LEAST_PROMPTS - 1)) == OPEN


def test_heads_are_averaged_within_a_prompt_before_prompts_are_drawn():
    """Thousand heads of one prompt are one sample: by hand, (0 + 1) / 2, not the mean over rows."""
    frame = pd.DataFrame({"prompt": ["a"] * 1000 + ["b"], "value": [0.0] * 1000 + [1.0]})
    found = over_prompts(frame, "value")
    assert found is not None
    assert found.mean == 0.5
    assert found.n == 2
    assert over_prompts(frame.iloc[:0], "value") is None


def test_a_verdict_says_what_it_rests_on_and_asks_for_more_only_where_it_is_open():
    frame = pd.DataFrame({"prompt": ["a", "a", "b"], "layer": [0, 0, 1], "head": [0, 1, 0]})
    assert basis_of(frame, merges=1200).words == "2 prompts, 3 heads, 1,200 merges"
    decided = judge("It is so.", interval_of([0.8] * 8), MORE, Basis(8), "0.8", "kvlab more")
    assert (decided.verdict, decided.settle) == (HOLDS, None)
    few = judge("It is so.", interval_of([0.8] * 2), MORE, Basis(2), "0.8", "kvlab more")
    assert (few.verdict, few.settle) == (OPEN, "kvlab more")
    assert MORE.words == "above 0.5: a reason"  # at 0.5 itself it does not count
