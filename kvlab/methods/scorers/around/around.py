"""A scorer around another: what it says of itself is what the other says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.pipeline import Scorer
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class Around:
    """Needs what the scorer inside needs, and sees what that sees."""

    scorer: Scorer

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
