"""Compose a method from other methods' scores, allocations, selections and settlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue
from torch import Tensor

from kvlab.core.contract.method import Method, make_method, register
from kvlab.core.contract.parts import Capabilities, Scorer, Selector, Settler, capabilities_of, optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.errors import UserError
from kvlab.core.methods.allocators.model_wide import ModelWide
from kvlab.core.methods.allocators.profile import HeadProfile
from kvlab.core.methods.composition.choices import (
    PARTS,
    SELECTORS,
    choices,
    distribute_parameters,
    pipeline_of,
    selector,
    source,
)
from kvlab.core.methods.eviction.cap import Capacity
from kvlab.core.methods.eviction.compactor import ChunkLeverage
from kvlab.core.methods.eviction.cur import SquaredLengths
from kvlab.core.methods.eviction.gvote import Ballots, ChosenSlots
from kvlab.core.methods.eviction.streaming_llm import EvictAndReposition
from kvlab.core.methods.merging.asymkv import PairMerge
from kvlab.core.methods.merging.cam import ACCUMULATED, ValueMerge
from kvlab.core.methods.merging.d2o import Variance
from kvlab.core.methods.merging.exactmerge import ExactResidual
from kvlab.core.methods.merging.keepkv import NearestMerge
from kvlab.core.methods.merging.pyramid_pool import Pool
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.attention.ema import EmaScore
from kvlab.core.methods.scorers.key_value.recency import Recency, Unscored
from kvlab.core.methods.scorers.lookahead.kvzap import PredictedScore
from kvlab.core.methods.scorers.lookahead.kvzip import RehearsedAttention
from kvlab.core.methods.scorers.wrappers.wrapper import PromptOnly
from kvlab.core.methods.settlers.eviction.evict import Evict
from kvlab.core.methods.settlers.merging.gaussian_sets import GaussianSets

# Scores fixed at the prompt or derived from the slot; scorers with `recall` qualify too.
COSTS_NO_STEP = (
    PromptOnly,
    Ballots,
    RehearsedAttention,
    PredictedScore,
    Recency,
    Capacity,
    SquaredLengths,
    ChunkLeverage,
)
# Half of an equal share would be half of what layers can give each other.
RECENT_ACROSS_LAYERS = 16
__all__ = ["Composition", "choices", "compose"]


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
    def rehearsed(self) -> Any:
        return optional(self.main, "rehearsed")

    @property
    def state(self) -> Mapping[str, float]:
        own = {} if self.kept_as is None else {self.kept_as: 0.0}
        return {**self.aside.state, **self.main.state, **own}

    def accumulate(self, slots: Slots, seen: Seen) -> dict[str, Tensor]:
        main = optional(self.main, "accumulate")
        aside = optional(self.aside, "accumulate")
        changed = {} if main is None else dict(main(slots, seen))
        return changed if aside is None else self._named(dict(aside(self._hidden(slots), seen))) | changed

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


def compose(
    score: str = "accumulated",
    allocate: str = "uniform",
    select: str = "topk",
    settle: str = "evict",
    **hyper_parameters: Any,
) -> Composition:
    """Create a method from four named choices, for `make_cache(model, compose(...), budget)`.

    `choices()` lists the names; a method's name stands for that method's part. A hyper-parameter goes to the choice
    that has it; if two have it, prefix it with the part (`score_window`, `settle_window`). `sinks` and `recent` belong
    to `select` "topk". Raises UserError for unknown names and incompatible choices.
    """
    parts = {"score": score, "allocate": allocate, "select": select, "settle": settle}
    made = make_method(Composition.name, **parts, **hyper_parameters)
    assert isinstance(made, Composition)
    return made


def _names_of(part: str) -> Callable[[dict[str, Any]], None]:
    """Add the choices to a field's JSON schema, for forms."""
    return lambda schema: schema.update(enum=choices()[part])


@register
class Composition(Method):
    """Combine any methods' score, allocation, selection and settling.

    Further hyper-parameters are those of the chosen methods. State that the chosen merge needs besides the score
    (running averages, accumulated attention) is maintained too. Acts while decoding only if the methods of score and
    settler both do. Selection `topk` protects 4 sinks and half the budget of recent tokens unless `sinks` and `recent`
    are set, or 16 recent tokens if layers share a budget. GVote's allocation takes no budget.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: ClassVar[str] = "compose"
    family: ClassVar[str] = "composition"
    title: ClassVar[str] = "Composition"
    paper: ClassVar[str] = ""

    score: str = Field("accumulated", description="importance of slots", json_schema_extra=_names_of("score"))
    allocate: str = Field(
        "uniform", description="split of the budget over layers and heads", json_schema_extra=_names_of("allocate")
    )
    select: str = Field(
        "topk", description="which slots may be evicted, lowest scores first", json_schema_extra=_names_of("select")
    )
    settle: str = Field("evict", description="what happens to victims", json_schema_extra=_names_of("settle"))

    @property
    def needs_budget(self) -> bool:  # type: ignore[override]  # a constant of the class elsewhere
        """Whether the allocation needs a budget."""
        return source("allocate", self.allocate)[1].needs_budget

    @classmethod
    def describe(cls) -> dict[str, JsonValue]:
        return super().describe() | {"needs_budget": True}

    def model_post_init(self, context: Any) -> None:
        """Check that the choices exist and are compatible."""
        self.pipeline()

    def pipeline(self) -> Pipeline:
        names = {"score": self.score, "allocate": self.allocate, "select": self.select, "settle": self.settle}
        given = distribute_parameters(names, dict(self.model_extra or {}))
        plain = self.select in SELECTORS
        parts = {part: pipeline_of(part, names[part], given[part]) for part in PARTS if part != "select" or not plain}
        apart = isinstance(parts["allocate"].allocate, ModelWide | HeadProfile)
        recent = RECENT_ACROSS_LAYERS if apart else 0.5
        select = selector(self.select, given["select"], recent) if plain else parts["select"].select
        return _fitted(_Chosen(names, parts["score"], parts["allocate"], select, parts["settle"]))


@dataclass(frozen=True)
class _Chosen:
    names: dict[str, str]
    score: Pipeline
    allocate: Pipeline
    select: Selector
    settle: Pipeline


def _fitted(chosen: _Chosen) -> Pipeline:
    score = chosen.score.score
    allocate = chosen.allocate.allocate
    settle = chosen.settle.settle
    decode = chosen.score.decode and chosen.settle.decode
    selects = capabilities_of(chosen.select)
    if isinstance(allocate, ChosenSlots) and not isinstance(score, Ballots):
        raise UserError(
            f"gvote's allocation needs the votes of its own score, but the score is {chosen.names['score']!r}: use "
            "score 'gvote' with it, or another allocation."
        )
    *others, settled = chosen.names.values()
    if type(settle) is Evict and settled not in ("evict", *others):  # a method's own four parts are that method
        raise UserError(f"{settled} only evicts tokens: use settle 'evict'.")
    if isinstance(settle, Pool | GaussianSets | PairMerge) and selects.protected is None:
        raise UserError(f"settle {chosen.names['settle']!r} needs a selection with protected slots, such as 'topk'.")
    if isinstance(settle, EvictAndReposition) and not (
        isinstance(score, Recency) and optional(chosen.select, "sinks") is not None
    ):
        raise UserError(
            "Positions inside the cache need sinks and a window without gaps: use score 'recency' and selection "
            "'topk' or 'oldest', or positions 'original'."
        )
    if isinstance(settle, ExactResidual) and settle.future is not None and not score.needs_hidden_states:
        raise UserError(
            "futures are sampled from hidden states, which only the scores of exactmerge (with the same futures) and "
            "gvote provide: use one of these scores, or no futures."
        )
    if isinstance(allocate, Variance):
        allocate = replace(allocate, from_score=isinstance(score, AccumulatedAttention) and score.decay == 1)
    if isinstance(allocate, ModelWide | HeadProfile):
        allocate = replace(allocate, select=chosen.select)
    score, settle = _with_state(score, settle, chosen)
    if not decode and not (isinstance(score, COSTS_NO_STEP) or capabilities_of(score).recall):
        score = PromptOnly(score)
    buffer = chosen.score.buffer if decode else 0
    deferred = chosen.allocate.deferred
    block = chosen.score.block if decode and not deferred else 0  # between two decisions, so there must be several
    return Pipeline(score, allocate, chosen.select, settle, decode, deferred, block=block, buffer=buffer)


def _with_state(score: Scorer, settle: Settler, chosen: _Chosen) -> tuple[Scorer, Settler]:
    """Extend the scorer by state the settler reads, and tell the settler how scores combine."""
    plain = score.scorer if isinstance(score, PromptOnly) else score
    if isinstance(settle, NearestMerge):
        return _with_averages(score, plain, settle, chosen)
    if isinstance(settle, ValueMerge) and not isinstance(plain, AccumulatedAttention):
        return Beside(score, AccumulatedAttention(), ACCUMULATED), settle
    return score, settle


def _with_averages(score: Scorer, plain: Scorer, settle: NearestMerge, chosen: _Chosen) -> tuple[Scorer, NearestMerge]:
    averages = chosen.settle.score
    assert isinstance(averages, EmaScore)
    if isinstance(plain, EmaScore):
        if plain.alpha != averages.alpha:
            raise UserError(
                f"keepkv's merge predicts with the averages its score keeps, so score_alpha ({plain.alpha}) and "
                f"settle_alpha ({averages.alpha}) must be equal: set alpha once, without a prefix."
            )
        return replace(plain, raw=plain.raw or averages.raw), settle
    combine: Literal["sum", "max"] = "max" if isinstance(plain, Recency | Unscored) else "sum"
    settle = replace(settle, combine_score=combine)
    return (score if settle.predict == "current" else Beside(score, averages)), settle
