"""Two scores that take turns: the best by one, the best by the other, the second best by one ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvlab.methods.pipeline import Scorer
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class Alternating:
    """Score = -min(2 rank_1, 2 rank_2 + 1), ranks from 0 within a head: of k slots that stay each chose about half.

    Set at the prompt; later tokens keep score 0, which is higher than any, until a decision judges all anew.
    """

    one: Scorer
    other: Scorer
    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)

    def prompt_rows(self, tokens: int) -> int:
        """What the more demanding one needs."""
        parts = (part for part in (self.one, self.other) if hasattr(part, "prompt_rows"))
        return max((part.prompt_rows(tokens) for part in parts), default=1)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill."""
        if not first:
            return {}
        return self._turns(slots, self.one.update(slots, seen, first), self.other.update(slots, seen, first))

    @property
    def recalls(self) -> int:
        """What the first one looks at again in decisions while decoding; the other is asked as at the prompt."""
        return getattr(self.one, "recalls", 0)

    def recall(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 by the newest queries."""
        mine = self.one.recall(slots, seen)  # type: ignore[attr-defined]
        return self._turns(slots, mine, self.other.update(slots, seen, True))

    def _turns(self, slots: Slots, mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        one, other = (_rank(part["score"], slots.valid) for part in (mine, theirs))
        return {"score": -(2 * one).minimum(2 * other + 1).float()}


def _rank(score: Tensor, valid: Tensor) -> Tensor:
    """(B, H, S) int64: 0 for the highest; of equals the newer first."""
    best = score.masked_fill(~valid, float("-inf")).flip(-1).argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return best.flip(-1)
