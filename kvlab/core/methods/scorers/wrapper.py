"""Base class and wrappers of scorers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Scorer, Slots, Wrapper, capabilities_of, optional


@dataclass(frozen=True, kw_only=True)
class PromptScorer:
    """Base class of scorers with the usual defaults of a `Scorer`; a subclass adds `update`, and other `capabilities`.

    The fields are keyword-only, so that a subclass's own come first; one that has another default here stays so.
    """

    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Those of a scorer that needs and provides nothing."""
        return Capabilities()


@dataclass(frozen=True)
class SlotScorer(PromptScorer):
    """Scores slots by what they hold, `rate`: decisions compute it, the steps between them do not."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(note=self.note, rate=self.rate)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {"score": self.rate(slots)}

    def note(self, slots: Slots, layer_pass: AttentionPass) -> None:
        """A step changes nothing."""

    def rate(self, slots: Slots) -> Tensor:
        """Scores (B, H, S) float32."""
        raise NotImplementedError


@dataclass(frozen=True)
class WindowScorer(PromptScorer):
    """Scores the prompt by its last `window` queries, and decisions while decoding by the newest ones."""

    window: int = 32

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=lambda tokens: self.window, recalls=self.window, recall=self.recall)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; decisions while decoding use `recall`."""
        return self._scored(slots, layer_pass.last_logits(min(self.window, layer_pass.num_new))) if first else {}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the current slots, from the newest queries."""
        return self._scored(slots, layer_pass.recalled_logits(slots.position, self.window))

    def _scored(self, slots: Slots, logits: Tensor) -> dict[str, Tensor]:
        """Scores from `logits` (B, H, G, r, S), -inf at hidden slots."""
        raise NotImplementedError


class ScorerWrapper(Wrapper):
    """Base class of what wraps a scorer: the sum of attention and the costs of a step are its own.

    It may skip queries, so that slots store their counts.
    """

    row_weights: ClassVar[None] = None
    counted_state: ClassVar[None] = None
    costs_no_step: ClassVar[bool] = False


@dataclass(frozen=True)
class Around(ScorerWrapper):
    """A wrapper with the needs and state of the inner scorer."""

    wraps: ClassVar[str] = "scorer"

    scorer: Scorer

    @property
    def needs_hidden_states(self) -> bool:
        return self.scorer.needs_hidden_states

    @property
    def state(self) -> Mapping[str, float]:
        return self.scorer.state


@dataclass(frozen=True)
class PromptOnly(Around):
    """Another scorer's scores of the prompt; later tokens keep score 0, so decoding costs nothing."""

    costs_no_step: ClassVar[bool] = True

    every_step: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """The scorer's capabilities for the prompt, without those for decoding."""
        inner = capabilities_of(self.scorer)
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            second_pass=inner.second_pass,
        )

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """The scorer's update on the first prefill only."""
        return self.scorer.update(slots, layer_pass, first) if first else {}


@dataclass(frozen=True)
class SlotsAlone(Around):
    """Another scorer's scores, from attention that sums to 1 over slots without the low-rank state (LESS's code)."""

    score_second_pass: ClassVar[None] = None

    @property
    def every_step(self) -> bool:
        return self.scorer.every_step

    @property
    def capabilities(self) -> Capabilities:
        """What the scorer does after a pass; other functions would include the state's share."""
        inner = capabilities_of(self.scorer)
        return Capabilities(
            prompt_rows=inner.prompt_rows,
            across_heads=inner.across_heads,
        )

    @property
    def accumulate(self) -> Any:
        """As the inner scorer, without the state."""
        inner = optional(self.scorer, "accumulate")
        return None if inner is None else lambda slots, layer_pass: inner(slots, layer_pass.of_slots())

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """The inner scorer's update, without the state."""
        return self.scorer.update(slots, layer_pass.of_slots(), first)


@dataclass(frozen=True)
class Beside(ScorerWrapper):
    """Score with `main`, and maintain the state of `aside`.

    `kept_as` names the slot state that holds the other scorer's score; without it only its own state is kept.
    """

    wraps: ClassVar[str] = "main"

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
        main = capabilities_of(self.main)
        aside = capabilities_of(self.aside)
        return Capabilities(
            prompt_rows=lambda tokens: max(main.prompt_rows(tokens), aside.prompt_rows(tokens)),
            across_heads=main.across_heads or aside.across_heads,
            recalls=main.recalls,
            second_pass=main.second_pass,
            recall=main.recall,
        )

    @property
    def state(self) -> Mapping[str, float]:
        kept_column = {} if self.kept_as is None else {self.kept_as: 0.0}
        return {**self.aside.state, **self.main.state, **kept_column}

    def accumulate(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        main = optional(self.main, "accumulate")
        aside = optional(self.aside, "accumulate")
        changed = {} if main is None else dict(main(slots, layer_pass))
        return changed if aside is None else self._named(dict(aside(self._hidden(slots), layer_pass))) | changed

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """The main scorer's update and the other's state."""
        aside = self.aside.update(self._hidden(slots), layer_pass, first)
        return self._named(aside) | self.main.update(slots, layer_pass, first)

    def _hidden(self, slots: Slots) -> Slots:
        """The slots with the other scorer's score."""
        return slots if self.kept_as is None else replace(slots, score=slots.extra[self.kept_as])

    def _named(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The other scorer's state, with its score renamed."""
        score = state.pop("score", None)
        return state if self.kept_as is None or score is None else state | {self.kept_as: score}
