"""A scorer that acts once, for methods that compress the prompt and keep what is generated."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvlab.methods.core.contract import Capabilities
from kvlab.methods.core.view import Seen, Slots
from kvlab.methods.scorers.wrappers.wrapper import Around


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
