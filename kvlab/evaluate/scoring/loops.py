"""Loops of a generated text: a piece that repeats until the end. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PIECE = 64  # tokens
FEWEST_REPEATS = 3
FEWEST_TOKENS = 12  # "ha ha ha" is no loop


def loop_tokens(ids: Sequence[int]) -> int:
    """The number of last tokens that are one piece of at most `LONGEST_PIECE` tokens, again and again; 0 if none.

    The piece occurs at least `FEWEST_REPEATS` times and the last time perhaps in part; of several such tails the
    longest counts.
    """
    return max((_tail(ids, size) for size in range(1, LONGEST_PIECE + 1)), default=0)


def _tail(ids: Sequence[int], size: int) -> int:
    """Length of the longest end of `ids` with period `size`, 0 if it is too short to be a loop."""
    same = 0
    place = len(ids) - 1
    while place - size >= 0 and ids[place] == ids[place - size]:
        same = same + 1
        place = place - 1
    covered = same + size if same else 0
    return covered if covered >= max(FEWEST_REPEATS * size, FEWEST_TOKENS) else 0
