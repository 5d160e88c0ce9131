"""Bisection finds a set from which nothing can be taken, whatever it is asked about."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlab.engine.restore.search import smallest

ITEMS = st.integers(1, 40)


@st.composite
def monotone(draw):
    """(number of items, sets any of which is enough)."""
    count = draw(ITEMS)
    enough = draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=5), min_size=1, max_size=4))
    return count, [frozenset(some) for some in enough]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(monotone())
def test_nothing_can_be_taken_from_what_is_found(case):
    count, enough = case
    does = lambda part: any(some <= set(part) for some in enough)  # noqa: E731
    part = smallest(range(count), lambda parts: [does(part) for part in parts], 10_000)
    assert part.does and part.complete and does(part.items)
    for item in part.items:
        assert not does([other for other in part.items if other != item])
    assert len({key for key, _ in part.tried}) == len(part.tried), "no set is asked for twice"
    assert len(part.tried) <= max(count, 40 * math.ceil(math.log2(count + 1)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.booleans(), min_size=2, max_size=64), st.integers(1, 30))
def test_no_smaller_set_that_was_tried_does_it_even_where_more_may_do_less(answers, most):
    asked = iter(answers * 40)
    part = smallest(range(20), lambda parts: [next(asked) for _ in parts], most)
    assert len(part.tried) <= most
    assert all(not did for some, did in part.tried if len(some) < len(part.items)) or not part.does
    assert part.does == any(did for _, did in part.tried)
    assert not part.does or dict(part.tried)[frozenset(part.items)]


def test_where_all_together_do_not_it_says_so_after_a_few_questions():
    part = smallest(range(32), lambda parts: [False] * len(parts), 100)
    assert (part.does, part.items, len(part.tried)) == (False, tuple(range(32)), 6)


def test_a_likely_first_item_takes_one_question():
    assert len(smallest(range(32), lambda parts: [0 in part for part in parts], 100).tried) == 1


def test_tests_of_a_bisection_run_together():
    rounds: list[int] = []

    def test(parts):
        rounds.append(len(parts))
        return [37 in part for part in parts]

    part = smallest(range(64), test, 100)
    assert part.items == (37,)
    assert len(rounds) < len(part.tried) / 2, "fewer rounds than tests"
