"""One scorer for the score, another for the state that a merge reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kvlab.methods.pipeline import Scorer
from kvlab.methods.rehearsal import Rehearsal
from kvlab.methods.view import Seen, Slots


@dataclass(frozen=True)
class Beside:
    """Scores as `main` does, and keeps the state of `aside` up to date as well.

    `kept_as` names the slot state in which the other scorer's score is kept; without it only its own state is.
    """

    main: Scorer
    aside: Scorer
    kept_as: str | None = None

    @property
    def every_step(self) -> bool:
        """If either needs it."""
        return self.main.every_step or self.aside.every_step

    @property
    def needs_hidden_states(self) -> bool:
        """If either needs them."""
        return self.main.needs_hidden_states or self.aside.needs_hidden_states

    @property
    def across_heads(self) -> bool:
        """If either scores heads together."""
        return any(getattr(part, "across_heads", False) for part in (self.main, self.aside))

    @property
    def state(self) -> Mapping[str, float]:
        """Both scorers' state."""
        own = {} if self.kept_as is None else {self.kept_as: 0.0}
        return {**self.aside.state, **self.main.state, **own}

    def prompt_rows(self, tokens: int) -> int:
        """What the more demanding one needs."""
        parts = (part for part in (self.main, self.aside) if hasattr(part, "prompt_rows"))
        return max((part.prompt_rows(tokens) for part in parts), default=1)

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """What either adds up."""
        main = self.main.accumulate(slots, seen) if hasattr(self.main, "accumulate") else {}
        if not hasattr(self.aside, "accumulate"):
            return main
        return self._named(self.aside.accumulate(self._hidden(slots), seen)) | main

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The main scorer's: what is kept beside it follows the prompt alone."""
        return getattr(self.main, "rehearsal", None)

    def rehearsed(self, slots: Slots, seen: Seen) -> Mapping[str, Tensor]:
        """As the main scorer does."""
        return self.main.rehearsed(slots, seen) if hasattr(self.main, "rehearsed") else {}

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The main scorer's update, with the other's state."""
        aside = self.aside.update(self._hidden(slots), seen, first)
        return self._named(aside) | self.main.update(slots, seen, first)

    @property
    def recalls(self) -> int:
        """As the main scorer does."""
        return getattr(self.main, "recalls", 0)

    def recall(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        """What the main scorer gives anew, if anything."""
        return self.main.recall(slots, seen) if hasattr(self.main, "recall") else {}

    def _hidden(self, slots: Slots) -> Slots:
        """The slots as the other scorer sees them: with its own score."""
        return slots if self.kept_as is None else replace(slots, score=slots.extra[self.kept_as])

    def _named(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The other scorer's state under its own names."""
        score = state.pop("score", None)
        return state if self.kept_as is None or score is None else state | {self.kept_as: score}
