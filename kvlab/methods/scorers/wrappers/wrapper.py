"""A scorer around another: it has the capabilities of the one inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvlab.methods.core.contract import Capabilities, Scorer, capabilities_of


@dataclass(frozen=True)
class Around:
    """Needs what the scorer inside needs, and keeps the same state."""

    scorer: Scorer

    @property
    def needs_hidden_states(self) -> bool:
        """As the scorer does."""
        return self.scorer.needs_hidden_states

    @property
    def state(self) -> Mapping[str, float]:
        """The scorer's own."""
        return self.scorer.state

    @property
    def inner(self) -> Capabilities:
        """The capabilities of the scorer inside."""
        return capabilities_of(self.scorer)
