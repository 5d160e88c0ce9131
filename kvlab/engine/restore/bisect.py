"""Find a minimal subset with a property of the whole set, by bisection with several tests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Test = Callable[[Sequence[tuple[Item, ...]]], list[bool]]  # whether each of several subsets has the property
AHEAD = 2  # steps of a bisection whose possible tests run together: 3 tests


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


class _Tests(Generic[Item]):
    """Results of tests by subset, at most `most`; the empty set is assumed not to have the property."""

    def __init__(self, test: Test[Item], most: int) -> None:
        self.test = test
        self.most = most
        self.results: dict[frozenset[Item], bool] = {frozenset(): False}

    def prepare(self, parts: Iterable[Sequence[Item]]) -> None:
        """Test several subsets together, as many as the limit allows, the first ones first."""
        unknown = {frozenset(part): tuple(part) for part in parts if frozenset(part) not in self.results}
        chosen = list(unknown.values())[: self.most + 1 - len(self.results)]
        if chosen:
            self.results |= zip(map(frozenset, chosen), self.test(chosen), strict=True)

    def ask(self, part: Sequence[Item]) -> bool:
        """Whether a subset has the property."""
        self.prepare([part])
        if frozenset(part) not in self.results:
            raise _LimitReached
        return self.results[frozenset(part)]


def smallest(items: Sequence[Item], test: Test[Item], most: int, unlikely: bool = False) -> Part[Item]:
    """The smallest subset found with at most `most` tests; the empty set is assumed not to have the property.

    If the property is monotone, the result is minimal. The last item of the shortest prefix of `items` with the
    property is necessary: it is kept, and the search continues among the items before it until the kept ones suffice,
    with about log2(n) rounds per item of the result. Put the likeliest items first. With `unlikely` the whole set is
    tested first.
    """
    tests = _Tests(test, most)
    complete = True
    among = list(items)
    found = list(items)
    try:
        found = _necessary(tests, among, unlikely)
        while (best := _least(tests)) and len(best) < len(found):  # a smaller set was tried on the way
            found = _necessary(tests, [item for item in items if item in best], False)
    except _LimitReached:
        complete = False
    best = _least(tests)
    tried = tuple(tests.results.items())[1:]
    chosen = frozenset(items) if best is None else frozenset(found) if len(found) == len(best) else best
    chosen = chosen if best is None or tests.results.get(chosen) else best
    return Part(tuple(item for item in items if item in chosen), best is not None, complete, tried)


def _least(tests: _Tests[Item]) -> frozenset[Item] | None:
    """The smallest tested subset with the property."""
    doing = [part for part, did in tests.results.items() if did]
    return min(doing, key=len) if doing else None


def _necessary(tests: _Tests[Item], items: list[Item], unlikely: bool) -> list[Item]:
    """Items that are necessary one by one, until they have the property or no prefix has."""
    kept: list[Item] = []
    rest = items
    while rest and not tests.ask(kept) and (not unlikely or tests.ask([*kept, *rest])):
        length = _shortest(tests, kept, rest)
        if length is None:
            break
        kept = [*kept, rest[length - 1]]
        rest = rest[: length - 1]
    tests.ask(kept)
    return kept


def _shortest(tests: _Tests[Item], kept: list[Item], rest: list[Item]) -> int | None:
    """The smallest number of items of `rest` that has the property beside `kept`, small ones first; None if none has.

    The first item is tested alone, then lengths that double together, then the lengths that the next steps of the
    bisection may ask for.
    """

    def part(length: int) -> list[Item]:
        return [*kept, *rest[:length]]

    if tests.ask(part(1)):
        return 1
    lengths = [min(2**power, len(rest)) for power in range(len(rest).bit_length() + 1)]
    tests.prepare(part(length) for length in lengths)
    low = 0
    high = 1
    while not tests.ask(part(high)):
        if high == len(rest):
            return None
        low = high
        high = min(2 * high, len(rest))
    while high - low > 1:
        tests.prepare(part(length) for length in _middles(low, high, AHEAD))
        middle = (low + high) // 2
        low, high = (low, middle) if tests.ask(part(middle)) else (middle, high)
    return high


def _middles(low: int, high: int, steps: int) -> list[int]:
    """The lengths that the next `steps` of a bisection between `low` and `high` may ask for, the first step's first."""
    if steps == 0 or high - low <= 1:
        return []
    middle = (low + high) // 2
    return [middle, *_middles(low, middle, steps - 1), *_middles(middle, high, steps - 1)]
