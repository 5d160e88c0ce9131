"""A scorer that acts once, for methods that compress the prompt and keep what is generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.scorers.around.around import Around
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class PromptOnly(Around):
    """Another scorer's scores of the prompt; later tokens keep score 0 and decoding pays nothing."""

    every_step: bool = False

    @property
    def rehearsal(self) -> Rehearsal | None:
        """As the scorer wants."""
        return getattr(self.scorer, "rehearsal", None)

    def rehearsed(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """As the scorer does."""
        return self.scorer.rehearsed(slots, seen) if hasattr(self.scorer, "rehearsed") else {}

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update on the first prefill, nothing later."""
        return self.scorer.update(slots, seen, first) if first else {}
