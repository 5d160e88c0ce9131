"""Compose a method from other methods' scores, allocations, selections and settlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, JsonValue

from kvlab.core.contract.method import Method, make_method, register
from kvlab.core.contract.parts import Selector, capabilities_of, optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError
from kvlab.core.methods.composition.choices import (
    PARTS,
    SELECTORS,
    choices,
    distribute_parameters,
    pipeline_of,
    selector,
    source,
)
from kvlab.core.methods.scorers.wrapper import PromptOnly
from kvlab.core.methods.settlers.evict import Evict

# Half of an equal share would be half of what layers can give each other.
RECENT_ACROSS_LAYERS = 16
__all__ = ["Composition", "choices", "compose"]


def compose(
    score: str | Method = "accumulated",
    allocate: str | Method = "uniform",
    select: str | Method = "topk",
    settle: str | Method = "evict",
    **hyper_parameters: Any,
) -> Composition:
    """Create a method from four others' parts, for `make_cache(model, compose(...), budget)`.

    Each is a method, as in `compose(score=SnapKV(window=16), settle=KeepKV())`, or a name: `choices()` lists them, and
    a method's name stands for that method's part. A hyper-parameter goes to the choice that has it; if two have it,
    prefix it with the part (`score_window`, `settle_window`). `sinks` and `recent` belong to `select` "topk". Raises
    UserError for unknown names and incompatible choices.
    """
    names: dict[str, str] = {}
    for part, choice in {"score": score, "allocate": allocate, "select": select, "settle": settle}.items():
        if isinstance(choice, str):
            names[part] = choice
            continue
        # As a score, "window" is SnapKV's observation window; the local window's own is recency.
        names[part] = "recency" if (part, choice.name) == ("score", "window") else choice.name
        given = {name: value for name, value in choice if value != type(choice).model_fields[name].default}
        if common := sorted(given.keys() & Method.model_fields.keys()):
            raise UserError(f"{' and '.join(common)} belong to the whole method: set them on what compose returns.")
        hyper_parameters = {f"{part}_{name}": value for name, value in given.items()} | hyper_parameters
    made = make_method(Composition.name, **names, **hyper_parameters)
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
        shares = optional(parts["allocate"].allocate, "shares_budget")
        recent = RECENT_ACROSS_LAYERS if shares else 0.5
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
    """The pipeline of chosen parts, each fitted to the others; raises UserError for parts that do not go together."""
    score = chosen.score.score
    allocate = chosen.allocate.allocate
    settle = chosen.settle.settle
    decode = chosen.score.decode and chosen.settle.decode
    *others, settled = chosen.names.values()
    if type(settle) is Evict and settled not in ("evict", *others):  # a method's own four parts are that method
        raise UserError(f"{settled} only evicts tokens: use settle 'evict'.")
    if optional(settle, "needs_protection") and capabilities_of(chosen.select).protected is None:
        raise UserError(f"settle {settled!r} needs a selection with protected slots, such as 'topk'.")
    if fit := optional(allocate, "fitted_to"):
        score, allocate = fit(score, chosen.select, chosen.allocate.score)
    if fit := optional(settle, "fitted_to"):
        score, settle = fit(score, chosen.select, chosen.settle.score)
    if not decode and not (optional(score, "costs_no_step") or capabilities_of(score).recall):
        score = PromptOnly(score)
    buffer = chosen.score.buffer if decode else 0
    deferred = chosen.allocate.deferred
    block = chosen.score.block if decode and not deferred else 0  # between two decisions, so there must be several
    return Pipeline(score, allocate, chosen.select, settle, decode, deferred, block=block, buffer=buffer)
