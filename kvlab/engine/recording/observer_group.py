"""Several observers of one cache, and the time they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache.settings import Observer
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View


class ObserverGroup:
    """An observer (`kvlab.cache.settings.Observer`) that passes everything on and measures it by the clock `now`.

    `seconds` is the time of all calls, `decision_seconds` of those within a decision.
    """

    def __init__(self, observers: Sequence[Observer], now: Callable[[], float] = time.perf_counter) -> None:
        self.observers, self.now = list(observers), now
        self.seconds = self.decision_seconds = 0.0

    @property
    def full(self) -> bool:
        """Whether any observer reads slots; otherwise all of them only count."""
        return any(getattr(observer, "full", True) for observer in self.observers)

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Report a pass."""
        self._pass_on("attended", layer_idx, slots, seen, output)

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Report a decision."""
        self.decision_seconds += self._pass_on("compressed", layer_idx, view, plan, before, after)

    def counted(self, layer_idx: int, counts: np.ndarray) -> None:
        """Report an in-place decision."""
        self._pass_on("counted", layer_idx, counts)

    def _pass_on(self, event: str, *given: Any) -> float:
        begun = self.now()
        for observer in self.observers:
            getattr(observer, event)(*given)
        taken = self.now() - begun
        self.seconds += taken
        return taken
