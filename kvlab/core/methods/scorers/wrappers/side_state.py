"""One scorer for the score, another for the state that a merge needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Scorer, capabilities_of
from kvlab.core.contract.view import Seen, Slots


@dataclass(frozen=True)
class Beside:
    """Score with `main`, and maintain the state of `aside`.

    `kept_as` names the slot state that holds the other scorer's score; without it only its own state is kept.
    """

    main: Scorer
    aside: Scorer
    kept_as: str | None = None

    @property
    def every_step(self) -> bool:
        return self.main.every_step or self.aside.every_step

    @property
    def needs_hidden_states(self) -> bool:
        return self.main.needs_hidden_states or self.aside.needs_hidden_states

    @property
    def capabilities(self) -> Capabilities:
        """The main scorer's, combined with the other's if both act in the same pass.

        Second pass and decisions while decoding are the main scorer's only; the side state follows the prompt.
        """
        main, aside = self._main, self._aside
        return Capabilities(
            prompt_rows=lambda tokens: max(main.prompt_rows(tokens), aside.prompt_rows(tokens)),
            across_heads=main.across_heads or aside.across_heads,
            recalls=main.recalls,
            rehearsal=main.rehearsal,
            accumulate=self.accumulate,
            recall=main.recall,
            rehearsed=main.rehearsed,
            residual_rule=main.residual_rule,
        )

    @property
    def _main(self) -> Capabilities:
        return capabilities_of(self.main)

    @property
    def _aside(self) -> Capabilities:
        return capabilities_of(self.aside)

    @property
    def state(self) -> Mapping[str, float]:
        own = {} if self.kept_as is None else {self.kept_as: 0.0}
        return {**self.aside.state, **self.main.state, **own}

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        main = self._main.accumulate(slots, seen) if self._main.accumulate is not None else {}
        if self._aside.accumulate is None:
            return dict(main)
        return self._named(dict(self._aside.accumulate(self._hidden(slots), seen))) | dict(main)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """The main scorer's update and the other's state."""
        aside = self.aside.update(self._hidden(slots), seen, first)
        return self._named(aside) | self.main.update(slots, seen, first)

    def _hidden(self, slots: Slots) -> Slots:
        """The slots with the other scorer's score."""
        return slots if self.kept_as is None else replace(slots, score=slots.extra[self.kept_as])

    def _named(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The other scorer's state, with its score renamed."""
        score = state.pop("score", None)
        return state if self.kept_as is None or score is None else state | {self.kept_as: score}
