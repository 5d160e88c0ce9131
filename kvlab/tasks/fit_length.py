"""Making a prompt as long as asked: never a token more, at most the last word's tokens fewer."""

from __future__ import annotations

from collections.abc import Callable

from kvlab.common.errors import UserError


def largest_fit(fits: Callable[[int], bool], most: int, guess: int) -> int:
    """Return the largest size in [0, most] that fits, or -1 where none does; if a size fits, every smaller one must.

    The search gallops away from `guess`, so a good guess costs three or four trials.
    """
    low = min(max(guess, 0), most)
    high, stride = low + 1, 1
    while low >= 0 and not fits(low):
        low, high, stride = low - stride, low, 2 * stride
    stride = 1
    while 0 <= low < most and high <= most and fits(high):
        low, high, stride = high, high + stride, 2 * stride
    return _bisect(fits, max(low, -1), min(high, most + 1))


def _bisect(fits: Callable[[int], bool], low: int, high: int) -> int:
    # low fits (or is -1), high does not (or is past the end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def too_short(task: str, length: int, need: int) -> UserError:
    """Return the error for a length that cannot hold what the task must state."""
    return UserError(f"{task}: {length} tokens cannot hold this task: ask for at least {need}, or for fewer parts.")
