"""Base class and wrappers of scorers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Scorer, capabilities_of, optional
from kvlab.core.contract.view import Seen, Slots


@dataclass(frozen=True)
class Around:
    """A wrapper with the needs and state of the inner scorer."""

    scorer: Scorer

    @property
    def needs_hidden_states(self) -> bool:
        return self.scorer.needs_hidden_states

    @property
    def state(self) -> Mapping[str, float]:
        return self.scorer.state

    @property
    def inner(self) -> Capabilities:
        """Capabilities of the inner scorer."""
        return capabilities_of(self.scorer)


@dataclass(frozen=True)
class PromptOnly(Around):
    """Another scorer's scores of the prompt; later tokens keep score 0, so decoding costs nothing."""

    every_step: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """The scorer's capabilities for the prompt, without those for decoding."""
        inner = self.inner
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            second_pass=inner.second_pass,
        )

    @property
    def accumulate(self) -> Any:
        return optional(self.scorer, "accumulate")

    @property
    def rehearsed(self) -> Any:
        return optional(self.scorer, "rehearsed")

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The scorer's update on the first prefill only."""
        return self.scorer.update(slots, seen, first) if first else {}


@dataclass(frozen=True)
class SlotsAlone(Around):
    """Another scorer's scores, from attention that sums to 1 over slots without the low-rank state (LESS's code)."""

    @property
    def every_step(self) -> bool:
        return self.scorer.every_step

    @property
    def capabilities(self) -> Capabilities:
        """What the scorer does after a pass; other functions would include the state's share."""
        inner = self.inner
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            across_heads=inner.across_heads,
        )

    @property
    def accumulate(self) -> Any:
        """As the inner scorer, without the state."""
        inner = optional(self.scorer, "accumulate")
        return None if inner is None else lambda slots, seen: inner(slots, seen.of_slots())

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The inner scorer's update, without the state."""
        return self.scorer.update(slots, seen.of_slots(), first)
