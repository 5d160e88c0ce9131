"""Risk control: p-values against plain loops, and the guarantee itself by simulation from known risks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.results.risk import bounds
from kvlab.results.risk.bounds import certify_ladder, drops, simulate

DRAWS, PROMPTS, TOLERANCE, LEVEL = 1000, 120, 0.1, 0.1
# True risks from the largest budget to the smallest.
RISING = [0.01, 0.03, 0.06, 0.09, 0.101, 0.15, 0.3]
FIRST_UNSAFE = [0.105, 0.02, 0.2]  # not monotone: the largest budget is the one that is not safe
ZIGZAG = [0.02, 0.08, 0.04, 0.101, 0.05, 0.102, 0.5]


def tail(hits: int, count: int, share: float) -> float:
    return sum(math.comb(count, i) * share**i * (1 - share) ** (count - i) for i in range(hits + 1))


@given(st.integers(1, 60), st.data())
def test_the_binomial_tail_is_the_sum_of_its_terms(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count - 1))
    share = data.draw(st.floats(0.001, 0.999))
    assert bounds.binomial_p_value(hits, count, share) == pytest.approx(tail(hits, count, share), rel=1e-9)


def test_the_tail_neither_over_nor_underflows() -> None:
    assert bounds.log_binomial_tail(0, 100_000, 0.5) == pytest.approx(100_000 * math.log(0.5))
    # Half of the mass of a symmetric distribution, and half of the middle term.
    middle = math.exp(math.lgamma(20_001) - 2 * math.lgamma(10_001) - 20_000 * math.log(2))
    assert math.exp(bounds.log_binomial_tail(10_000, 20_000, 0.5)) == pytest.approx(0.5 + middle / 2)


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0.01, 0.99))
def test_hoeffding_bentkus_is_the_smaller_of_its_two_bounds(count: int, mean: float, tolerance: float) -> None:
    r = min(mean, tolerance)
    h = sum(x * math.log(x / y) for x, y in ((r, tolerance), (1 - r, 1 - tolerance)) if x > 0)
    expected = min(1.0, math.exp(-count * h), math.e * tail(math.ceil(count * mean - 1e-9), count, tolerance))
    assert bounds.hoeffding_bentkus_p_value(count * mean, count, tolerance) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("p_value", [bounds.binomial_p_value, bounds.hoeffding_bentkus_p_value])
@pytest.mark.parametrize("tolerance", [0.01, 0.02, 0.3])
def test_the_fewest_prompts_pass_without_a_change_and_one_fewer_do_not(
    p_value: bounds.PValue, tolerance: float
) -> None:
    fewest = bounds.least_prompts(tolerance, 0.05)
    assert p_value(0, fewest, tolerance) <= 0.05 < p_value(0, fewest - 1, tolerance)
    assert bounds.prompts_needed(p_value, 0.0, tolerance, 0.05) == fewest


@pytest.mark.parametrize("p_value", [bounds.binomial_p_value, bounds.hoeffding_bentkus_p_value])
def test_the_bound_is_below_the_tolerance_where_the_test_passes(p_value: bounds.PValue) -> None:
    for changes in range(12):
        bound = bounds.upper_bound(p_value, changes, 100, 0.05)
        for tolerance in (0.02, 0.05, 0.1, 0.2):
            assert (p_value(changes, 100, tolerance) <= 0.05) == (bound <= tolerance), (changes, tolerance)
        assert bound > changes / 100


def test_prompts_needed_pass_at_the_observed_rate() -> None:
    for rate in (0.005, 0.01, 0.015):
        needed = bounds.prompts_needed(bounds.binomial_p_value, rate, 0.02, 0.05)
        assert needed is not None
        assert bounds.binomial_p_value(math.ceil(rate * needed), needed, 0.02) <= 0.05
    assert bounds.prompts_needed(bounds.binomial_p_value, 0.02, 0.02, 0.05) is None


def together(random: np.random.Generator, risks: np.ndarray) -> np.ndarray:
    """Losses (prompts, budgets) that depend on one another as much as they can: one threshold a prompt."""
    return (random.random((PROMPTS, 1)) < risks).astype(float)


def apart(random: np.random.Generator, risks: np.ndarray) -> np.ndarray:
    """Independent losses."""
    return (random.random((PROMPTS, len(risks))) < risks).astype(float)


def against(random: np.random.Generator, risks: np.ndarray) -> np.ndarray:
    """Losses of neighbouring budgets that exclude one another."""
    draw = random.random((PROMPTS, 1))
    flipped = np.where(np.arange(len(risks)) % 2, 1 - draw, draw)
    return (flipped < risks).astype(float)


def parts(random: np.random.Generator, risks: np.ndarray) -> np.ndarray:
    """Losses in [0, 1] with these means."""
    return random.beta(0.3, 0.3 * (1 - risks) / risks, (PROMPTS, len(risks)))


def violations(
    risks: list[float], draw: Callable[[np.random.Generator, np.ndarray], np.ndarray], p_value: bounds.PValue
) -> tuple[int, int]:
    """In how many draws a certified budget has a risk above the tolerance, and in how many anything is certified."""
    random, truth, wrong, found = np.random.default_rng(7), np.array(risks), 0, 0
    for _ in range(DRAWS):
        passed = np.array([step.certified for step in certify_ladder(draw(random, truth), TOLERANCE, LEVEL, p_value)])
        wrong += bool((passed & (truth > TOLERANCE)).any())
        found += bool(passed.any())
    return wrong, found


# Violations of 1,000 draws that the nominal share exceeds once in a thousand times.
MOST_WRONG = DRAWS * LEVEL + 3.1 * math.sqrt(DRAWS * LEVEL * (1 - LEVEL))


@pytest.mark.parametrize("draw", [together, apart, against])
@pytest.mark.parametrize("risks", [RISING, FIRST_UNSAFE, ZIGZAG], ids=["rising", "first unsafe", "zigzag"])
def test_a_certified_budget_is_unsafe_no_more_often_than_promised(risks: list[float], draw: Callable) -> None:
    wrong, _ = violations(risks, draw, bounds.binomial_p_value)
    assert wrong <= MOST_WRONG


def test_the_guarantee_is_not_empty() -> None:
    """A risk just above the tolerance, first in the ladder, is certified nearly as often as is allowed."""
    wrong, _ = violations([0.1001, 0.5], apart, bounds.binomial_p_value)
    assert wrong > DRAWS * LEVEL / 4


def test_losses_between_0_and_1_keep_the_promise_too() -> None:
    wrong, found = violations(RISING, parts, bounds.hoeffding_bentkus_p_value)
    assert wrong <= MOST_WRONG and found > 0.9 * DRAWS


def test_a_risk_clearly_below_the_tolerance_is_certified() -> None:
    for draw in (together, apart, against):
        _, found = violations([0.01, 0.02], draw, bounds.binomial_p_value)
        assert found > 0.99 * DRAWS


def test_the_best_of_several_methods_keeps_the_promise() -> None:
    """Four methods at risks just above the tolerance, each at a quarter of the level."""
    random, wrong = np.random.default_rng(3), 0
    for _ in range(DRAWS):
        tables = [apart(random, np.array([0.1001])) for _ in range(4)]
        wrong += any(
            certify_ladder(table, TOLERANCE, LEVEL / 4, bounds.binomial_p_value)[0].certified for table in tables
        )
    assert wrong <= MOST_WRONG


def test_testing_stops_at_the_first_budget_that_is_not_certified() -> None:
    losses = np.zeros((100, 4))
    losses[:50, 1] = 1
    steps = certify_ladder(losses, 0.1, 0.05, bounds.binomial_p_value)
    assert [step.certified for step in steps] == [True, False, False, False]
    assert [step.tested for step in steps] == [True, True, False, False]
    assert steps[2].p_value <= 0.05, "it alone would have passed"
    assert drops(losses.mean(axis=0)) == [2]


def test_a_simulation_certifies_samples_of_the_measured_prompts() -> None:
    """Against a plain loop; of a risk just above the tolerance no more is certified than promised."""
    losses = np.zeros((200, 2))
    losses[:21, 0], losses[:90, 1] = 1, 1
    made = simulate({("all", "h2o"): losses}, TOLERANCE, LEVEL, bounds.binomial_p_value, DRAWS, seed=5)
    random, counts = np.random.default_rng([5, *b"all"]), [0, 0, 0]
    for _ in range(DRAWS):
        sample = losses[random.integers(200, size=200)]
        steps = certify_ladder(sample, TOLERANCE, LEVEL, bounds.binomial_p_value)
        counts[sum(step.certified for step in steps) - 1] += 1
    assert made.safe["all", "h2o"] == tuple(counts) and sum(counts) == DRAWS
    assert 0 < made.wrong == counts[0] + counts[1] <= MOST_WRONG
    nothing = simulate({("all", "h2o"): np.zeros((60, 1))}, TOLERANCE, LEVEL, bounds.binomial_p_value, 10)
    assert nothing.wrong == 0 and nothing.safe["all", "h2o"] == (10, 0)
