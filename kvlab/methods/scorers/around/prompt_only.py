"""A scorer that acts once, for methods that compress the prompt and keep what is generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.pipeline import Scorer
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class PromptOnly:
    """Another scorer's scores of the prompt; later tokens keep score 0 and decoding pays nothing."""

    scorer: Scorer
    every_step: bool = False

    @property
    def needs_hidden_states(self) -> bool:
        """As the scorer does."""
        return self.scorer.needs_hidden_states

    @property
    def state(self) -> Mapping[str, float]:
        """The scorer's own."""
        return self.scorer.state

    def prompt_rows(self, tokens: int) -> int:
        """As the scorer needs."""
        return self.scorer.prompt_rows(tokens) if hasattr(self.scorer, "prompt_rows") else 1

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """As the scorer does."""
        return self.scorer.accumulate(slots, seen) if hasattr(self.scorer, "accumulate") else {}

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
