"""Scores as if the slots were all that queries attend to, with a state beside them left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.core.contract import Capabilities
from kvlab.methods.core.view import Seen, Slots
from kvlab.methods.scorers.wrappers.wrapper import Around


@dataclass(frozen=True)
class SlotsAlone(Around):
    """Another scorer's scores, of attention that sums to 1 over the slots whatever the state takes (LESS's code)."""

    @property
    def every_step(self) -> bool:
        """As the scorer does."""
        return self.scorer.every_step

    @property
    def capabilities(self) -> Capabilities:
        """What the scorer does after a pass; other functions would see what the state takes."""
        inner = self.inner
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            across_heads=inner.across_heads,
            accumulate=None if inner.accumulate is None else self.accumulate,
        )

    def accumulate(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """As the scorer does."""
        assert self.inner.accumulate is not None
        return self.inner.accumulate(slots, seen.of_slots())

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update from what the slots alone were given."""
        return self.scorer.update(slots, seen.of_slots(), first)
