"""Comparison of two sequences of tokens, words or characters."""

from __future__ import annotations

from collections.abc import Sequence


def shared_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Number of elements that two sequences have in common from the start, before the first that differs."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
