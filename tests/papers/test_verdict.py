"""A verdict is decided by an interval over prompts, and never by few of them."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from kvlab.common.intervals import Interval
from kvlab.papers.evaluations import contest, gap
from kvlab.papers.evidence import basis_of, interval_of, over_prompts
from kvlab.requests.measurement import Benchmark
from kvlab.results.verdict import (
    FAILS,
    HOLDS,
    LEAST_PROMPTS,
    OPEN,
    Basis,
    Claim,
    Threshold,
    Verdict,
    judge,
    judge_universal,
    prompts_needed,
    verdict_sentence,
    what_would_change,
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
    assert basis_of(frame, merges=1200).description == "2 prompts, 3 heads, 1,200 merges"
    decided = judge("It is so.", interval_of([0.8] * 8), MORE, Basis(8), "0.8", "kvlab more")
    assert (decided.verdict, decided.settle) == (HOLDS, None)
    few = judge("It is so.", interval_of([0.8] * 2), MORE, Basis(2), "0.8", "kvlab more")
    assert (few.verdict, few.settle) == (OPEN, "kvlab more")
    assert MORE.description == "above 0.5: a reason"  # at 0.5 itself it does not count


def judged(mean: float, low: float, high: float, n: int = 8, threshold: Threshold = MORE) -> Claim:
    return judge("It is so.", Interval(mean, low, high, n), threshold, Basis(n), "so much")


@pytest.mark.parametrize(
    ("claim", "sentence", "change"),
    [
        (
            judged(0.8, 0.7, 0.9),
            "Holds on mini (n = 8 prompts): all of the 95 % interval, 0.7 to 0.9, is above 0.5.",
            "Prompts that move the mean from 0.8 to below 0.5; the interval now ends at 0.7.",
        ),
        (
            judged(1.28, 1.26, 1.32, threshold=Threshold(0.8, "x", up_to=1.25)),
            "Does not hold on mini (n = 8 prompts): none of the 95 % interval, 1.26 to 1.32, is between 0.8 and 1.25.",
            "Prompts that move the mean from 1.28 to below 1.25; the interval now ends at 1.26.",
        ),
        (
            judged(0.6, 0.4, 0.7),
            "Not enough to say on mini (n = 8 prompts): only a part of the 95 % interval, 0.4 to 0.7, is above 0.5.",
            "About 24 more prompts, if the mean stays at 0.6: then it holds.",  # half as wide: four times as many
        ),
        (
            judged(0.4, 0.3, 0.6),
            "Not enough to say on mini (n = 8 prompts): only a part of the 95 % interval, 0.3 to 0.6, is above 0.5.",
            "About 24 more prompts, if the mean stays at 0.4: then it does not hold.",
        ),
        (
            judged(0.8, 0.8, 0.8, n=1),
            "Not enough to say on mini (n = 1 prompt): a verdict needs at least 6 prompts.",
            "At least 5 more prompts.",
        ),
        (
            judged(0.5, 0.4, 0.6),
            "Not enough to say on mini (n = 8 prompts): only a part of the 95 % interval, 0.4 to 0.6, is above 0.5.",
            "More than 1,000 prompts: the mean, 0.5, is close to the threshold.",
        ),
        (
            Claim("A.", FAILS, "1", Basis(repeats=3), threshold=MORE, units=(0.4, 0.6)),
            "Does not hold on mini (3 repeats): 1 of 2 values is above 0.5.",
            "Values that are above 0.5.",
        ),
        (
            Claim("A.", OPEN, "1", Basis(repeats=3), None, MORE, Benchmark("a", Path("b")), units=(0.4,)),
            "Not enough to say on mini (3 repeats): the value is not above 0.5.",
            "The same benchmark at the paper's own size.",
        ),
        (
            Claim("A.", HOLDS, "1", Basis(8)),
            "Holds on mini (n = 8 prompts): no exception was found.", "One exception.",
        ),
        (Claim("A.", OPEN, "1"), "Not enough to say on mini.", ""),
    ],
)  # fmt: skip
def test_a_verdict_is_one_sentence_and_says_what_would_change_it(claim: Claim, sentence: str, change: str):
    assert verdict_sentence(claim, "mini") == sentence
    assert what_would_change(claim) == change


def test_the_number_of_prompts_needed_falls_with_the_distance_and_is_never_below_the_least():
    assert prompts_needed(Interval(0.6, 0.4, 0.7, 8), MORE) == 32
    assert prompts_needed(Interval(5.0, 4.9, 5.1, 8), MORE) == LEAST_PROMPTS
    assert prompts_needed(Interval(0.5, 0.4, 0.6, 8), MORE) == math.inf
    assert prompts_needed(Interval(0.9, -math.inf, 1.0, 8), MORE) == math.inf
    # In a range the nearer end decides, from inside and from outside.
    between = Threshold(0.0, "x", up_to=1.0)
    assert prompts_needed(Interval(0.9, 0.5, 1.2, 8), between) == 72
    assert prompts_needed(Interval(1.1, 0.9, 1.2, 8), between) == 32


@pytest.mark.parametrize(
    ("scores", "effect", "words"),
    [
        ([1.0] * 8, "ceiling", "a ceiling effect"),
        ([0.0] * 8, "floor", "a floor effect"),
        ([1.0, 0.0] * 4, "equal", "a ceiling and floor effect: both score the same on every prompt, 0.5 on average"),
    ],
)
def test_equal_scores_are_called_a_ceiling_or_a_floor(scores: list[float], effect: str, words: str):
    """As no prompt can tell the arms apart, more of the same would not."""
    arms = ("a", "b")
    rows = pd.DataFrame(
        [
            {"task": "t", "difficulty": "", "content": "", "length": 9, "depth": 0.5, "index": at, "seed": 0,
             "question_aware": True, "method": arm, "hyper_parameters": "{}", "budget": 0.1, "budget_unit": "share",
             "metric": "exact_match", "score": score, "prefill_chunk": 0}
            for arm in arms for at, score in enumerate(scores)
        ]
    )  # fmt: skip
    claim = contest("A beats B.", {"a minus b": gap(rows, *arms)}, "so much")
    assert (claim.verdict, claim.effect, claim.part) == (OPEN, effect, "a minus b")
    assert words in verdict_sentence(claim, "mini")
    assert what_would_change(claim).startswith("Other prompts or another budget")
    one_apart = rows.assign(score=rows["score"].where(rows.index > 0, 0.25))
    assert contest("A beats B.", {"a minus b": gap(one_apart, *arms)}, "so much").effect == ""


def test_a_claim_decided_by_an_equal_score_names_no_effect():
    """As many points as the full cache are within a margin, whatever the score is."""
    verdict: Verdict = HOLDS
    found = Interval(0.0, -0.02, 0.02, 50, (0.0,) * 50, 1.0)
    claim = contest("A is as good.", {"a": found}, "so much", threshold=Threshold(-0.05, "a margin"))
    assert (claim.verdict, claim.effect) == (verdict, "")
