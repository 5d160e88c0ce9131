"""Find a minimal subset with a property of the whole set, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _LimitReached(Exception):
    pass


@dataclass(frozen=True)
class Part(Generic[Item]):
    """The smallest subset found with the property, or the whole set if none has it (`does` is false).

    `complete`: the search finished within its limit. `tried` are all tested sets with their results.
    """

    items: tuple[Item, ...]
    does: bool
    complete: bool
    tried: tuple[tuple[frozenset[Item], bool], ...]


def smallest(
    items: Sequence[Item], does: Callable[[tuple[Item, ...]], bool], most: int, unlikely: bool = False
) -> Part[Item]:
    """The smallest subset found with at most `most` calls of `does`; the empty set is assumed not to have the property.

    If `does` is monotone, the result is minimal. The last item of the shortest prefix of `items` with the property is
    necessary: it is kept, and the search continues among the items before it until the kept ones suffice, with about
    log2(n) calls per item of the result. Put the likeliest items first. With `unlikely` the whole set is tested first.
    """
    results: dict[frozenset[Item], bool] = {frozenset(): False}

    def ask(part: Sequence[Item]) -> bool:
        key = frozenset(part)
        if key not in results:
            if len(results) > most:
                raise _LimitReached
            results[key] = does(tuple(part))
        return results[key]

    kept: list[Item] = []
    rest, complete = list(items), True
    try:
        while rest and not ask(kept) and (not unlikely or ask([*kept, *rest])):
            length = _shortest(len(rest), lambda count: ask([*kept, *rest[:count]]))  # noqa: B023
            if length is None:
                break
            kept, rest = [*kept, rest[length - 1]], rest[: length - 1]
        ask(kept)
    except _LimitReached:
        complete = False
    tried = tuple(results.items())[1:]
    doing = [part for part, did in tried if did]
    best = min(doing, key=len) if doing else frozenset(items)
    return Part(tuple(item for item in items if item in best), bool(doing), complete, tried)


def _shortest(count: int, does: Callable[[int], bool]) -> int | None:
    """The smallest length from 1 to `count` with the property, small ones first; None if there is none."""
    low, high = 0, 1
    while not does(high):
        if high == count:
            return None
        low, high = high, min(2 * high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return high
