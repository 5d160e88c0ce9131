"""Results of one pass of the model that several caches use: each is computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class PassResults:
    """Results of one layer's pass, by name and arguments; nobody may change them in place.

    `charged` sums the seconds that known results took to compute, so that a cache that reuses them can still tell what
    it would take alone. `now` is the clock; on a GPU it must wait for the device to mean anything. `row_weights` (q,)
    are weights of the pass's queries in sums of attention that caches will ask for, so that they are computed together.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.charged = 0.0
        self.row_weights: list[Tensor] = []
        self._now = now
        self._known: dict[Hashable, list[tuple[Tensor | None, Any, float]]] = {}

    def get(self, name: Hashable, compute: Callable[[], Result], given: Tensor | None = None) -> Result:
        """The result called `name`, of `compute` unless it is known; results for different tensors `given` differ."""
        known = self._known.setdefault(name, [])
        for argument, result, seconds in known:
            if argument is given or (argument is not None and given is not None and _equal(argument, given)):
                self.charged += seconds
                return result
        begun = self._now()
        result = compute()
        known.append((given, result, self._now() - begun))
        return result

    def of_part(self, name: str, part: object, compute: Callable[[], Result]) -> Result:
        """A result that is the same for all caches with an equal `part` of their method; computed anew if the part
        cannot be hashed."""
        return self.get((name, part), compute) if _hashable(part) else compute()

    def expect(self, weight: Tensor) -> None:
        """Note weights that a cache will ask for."""
        if not any(torch.equal(weight, known) for known in self.row_weights):
            self.row_weights.append(weight)

    def place_of(self, weight: Tensor) -> int | None:
        """The place among `row_weights`; None if these weights were not expected, or no others were."""
        places = (place for place, known in enumerate(self.row_weights) if torch.equal(weight, known))
        return next(places, None) if len(self.row_weights) > 1 else None


def _hashable(part: object) -> bool:
    try:
        hash(part)
    except TypeError:
        return False
    return True


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
