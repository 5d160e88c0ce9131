"""A scorer around another: it has the capabilities of the one inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.core.contract import Capabilities, Scorer, capabilities_of
from kvlab.methods.core.view import Seen, Slots


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


@dataclass(frozen=True)
class PromptOnly(Around):
    """Another scorer's scores of the prompt; later tokens keep score 0 and decoding pays nothing."""

    every_step: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """What the scorer does for the prompt, and nothing of what it does while decoding."""
        inner = self.inner
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            rehearsal=inner.rehearsal,
            accumulate=inner.accumulate,
            rehearsed=inner.rehearsed,
        )

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update on the first prefill, nothing later."""
        return self.scorer.update(slots, seen, first) if first else {}


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
