"""The smallest part of an ordered set that does what all of it does, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Spent(Exception):
    """No more questions may be asked."""


@dataclass(frozen=True)
class Part(Generic[Item]):
    """The smallest set that was found to do it, or, without `does`, all of them.

    `complete`: the search came to its end. `tried` is every set asked for, with what it did.
    """

    items: tuple[Item, ...]
    does: bool
    complete: bool
    tried: tuple[tuple[frozenset[Item], bool], ...]


def smallest(
    items: Sequence[Item], does: Callable[[tuple[Item, ...]], bool], most: int, unlikely: bool = False
) -> Part[Item]:
    """The smallest set found, with at most `most` questions to `does`; nobody asks for the empty set, which does not.

    Where more never does less, taking any item out of the result undoes it. The last item of the shortest beginning of
    `items` that does it is needed; it is kept, and the shortest beginning is sought among those before it, until what
    was kept does it alone: about log2(n) questions for each item of the result. Put the likeliest first. Where not
    even all of them are likely to do it (`unlikely`), that is asked first.
    """
    known: dict[frozenset[Item], bool] = {frozenset(): False}

    def ask(part: Sequence[Item]) -> bool:
        key = frozenset(part)
        if key not in known:
            if len(known) > most:
                raise _Spent
            known[key] = does(tuple(part))
        return known[key]

    kept: list[Item] = []
    rest, complete = list(items), True
    try:
        while rest and not ask(kept) and (not unlikely or ask([*kept, *rest])):
            length = _shortest(len(rest), lambda count: ask([*kept, *rest[:count]]))  # noqa: B023
            if length is None:
                break
            kept, rest = [*kept, rest[length - 1]], rest[: length - 1]
        ask(kept)
    except _Spent:
        complete = False
    tried = tuple(known.items())[1:]
    doing = [part for part, did in tried if did]
    best = min(doing, key=len) if doing else frozenset(items)
    return Part(tuple(item for item in items if item in best), bool(doing), complete, tried)


def _shortest(count: int, does: Callable[[int], bool]) -> int | None:
    """The smallest length from 1 to `count` that does it, None where none does; small ones are asked first."""
    low, high = 0, 1
    while not does(high):
        if high == count:
            return None
        low, high = high, min(2 * high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return high
