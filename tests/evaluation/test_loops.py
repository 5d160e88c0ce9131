"""Loops at the end of a text: against a plain search over every piece, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.evaluation.scoring.order import FEWEST_REPEATS, FEWEST_TOKENS, LONGEST_PIECE, loop_tokens


def searched(ids: list[int]) -> int:
    """The longest end that is one piece again and again, the last time perhaps in part, found by trying all."""
    best = 0
    for start in range(len(ids)):
        tail = ids[start:]
        for size in range(1, LONGEST_PIECE + 1):
            repeated = (tail[:size] * (len(tail) // size + 1))[: len(tail)]
            if repeated == tail and len(tail) >= max(FEWEST_REPEATS * size, FEWEST_TOKENS):
                best = max(best, len(tail))
    return best


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(0, 8))
def test_the_tail_is_the_longest_repetition(before: list[int], piece: list[int], times: int) -> None:
    ids = before + piece * times
    assert loop_tokens(ids) == searched(ids)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], 0),
        (list(range(50)), 0),
        ([9, 8, *[1, 2, 3] * 5, 1], 16),
        ([1] * 11, 0),  # too short to be a loop
        ([7, *[1] * 12], 12),
        ([*range(64)] * 3, 192),
        ([*range(65)] * 3, 0),  # the piece is too long
    ],
)
def test_loops_by_hand(ids: list[int], expected: int) -> None:
    assert loop_tokens(ids) == expected
