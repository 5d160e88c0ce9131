"""What a method is: a frozen model of hyper-parameters that composes a pipeline, found by its name in one registry."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)
from pydantic_core import CoreSchema

from kvlab.common.errors import UserError
from kvlab.common.validation import shown
from kvlab.methods.core.packed_size import packed_sizes
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.published_settings import DEFAULT, PAPER, Preset
from kvlab.plugins.origin import KVLAB, Origin
from kvlab.plugins.registry import Registry
from kvlab.requests.budget import Amount, Budget, window_note
from kvlab.stores import AUTO, NATIVE, STORES, store_of, store_under


def offer_stores(schema: dict[str, Any]) -> None:
    """Adds the stores to a field's JSON schema when it is asked for, so that forms can offer them."""
    schema.update(enum=[*STORES])


class Method(BaseModel, ABC):
    """One method. Subclasses declare hyper-parameters as fields, and compose the four choices from them.

    `presets` are other people's configurations by name: `paper`, `code` where authors' code differs from it, and any
    further ones. `reasons` says of a hyper-parameter why its default is not a preset's value, or, where `paper` leaves
    it open, where the default comes from; every hyper-parameter is in one of the two.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str = Field(NATIVE, description="how settled slots are held in memory", json_schema_extra=offer_stores)

    name: ClassVar[str]
    family: ClassVar[str]  # reference | eviction | merging | pooling | budget-free
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    needs_budget: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {}
    reasons: ClassVar[Mapping[str, str]] = {}

    @field_validator("*")
    @classmethod
    def _numbers_end(cls, value: Any) -> Any:
        return in_bounds(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return with_bounds(handler.resolve_ref_schema(handler(core)))

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, name: str) -> str:
        store_of(name)
        return name

    @model_serializer(mode="wrap")
    def _without_native(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings as runs keep them; a native store is only named where it is no default, as before there were any."""
        usual = type(self).model_fields["store"].default == NATIVE
        return {name: value for name, value in dump(self).items() if not usual or (name, value) != ("store", NATIVE)}

    @abstractmethod
    def pipeline(self) -> Pipeline:
        """The method as score, allocate, select and settle."""

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        """Sentences about a run with so many slots a head on average that its settings alone do not tell; often none.

        Such as that a budget leaves nothing of the method but its window.
        """
        return list(filter(None, [window_note(self.title, self.own_window, budget_slots, prompt_tokens)]))

    @property
    def own_window(self) -> int:
        """The newest tokens of the prompt that always stay, so that a budget must exceed them; 0: none."""
        return 0

    def departures(self, preset: str = PAPER) -> dict[str, JsonValue]:
        """The preset's values, by name, of hyper-parameters that stand at another one; empty without such a preset."""
        published = self.presets[preset].settings() if preset in self.presets else {}
        theirs = type(self)(**published).model_dump(mode="json")
        ours = self.model_dump(mode="json")
        return {name: theirs[name] for name in published if ours[name] != theirs[name]}

    def holds(self, budget: Amount | None = None) -> dict[str, JsonValue]:
        """What a plan of memory and time needs to know of these settings, as data (`kvlab.planning.footprint.Holds`).

        Store `auto` is the one it means under `budget`, and native where none is given.
        """
        pipeline = self.pipeline()
        can = pipeline.can
        store = store_of(self.store) if budget is None else store_under(self.store, Budget(budget))
        return {
            "compresses": self.family != "reference",
            "needs_budget": self.needs_budget,
            "decode": pipeline.decode,
            "deferred": pipeline.waits,
            "buffer": pipeline.buffer,
            "recalled": pipeline.recalled,
            "saves_prefill": pipeline.saves_prefill,
            "seeks": can.settle.seeks,
            # Thinning in lots lets generated tokens stay for a while.
            "grows": can.settle.thinned is not None,
            # The logits of each query.
            "averages": can.score.reads_logits or can.settle.reads_logits,
            "settle_copies": max(can.score.key_copies, can.settle.key_copies),
            "settle_numbers": can.settle.numbers_a_slot,
            "needs_hidden_states": pipeline.score.needs_hidden_states,
            **pipeline.slot_bytes(),
            **pipeline.head_bytes(),
            **pipeline.scored_rows(),
            "packed": packed_sizes(store, pipeline),
            "block": pipeline.block,
            "again": pipeline.read_again(),
        }

    def held(self) -> dict[str, JsonValue]:
        """For forms, which choose the store last: what it `holds`, and what slots take in all `stores`."""
        pipeline = self.pipeline()
        stores: JsonValue = {name: packed_sizes(store, pipeline) for name, store in STORES.items() if name != AUTO}
        return {"holds": self.holds(), "stores": stores, "window": self.own_window}

    @classmethod
    def _origin(cls) -> Origin:
        return METHODS.origin(cls.name)

    @classmethod
    def _as_published(cls, preset: Preset) -> dict[str, JsonValue]:
        method = cls(**preset.settings())
        return preset.as_data() | {"needs_budget": method.needs_budget} | method.held()

    @classmethod
    def describe(cls) -> dict[str, JsonValue]:
        """The method as data, for forms and tables: name, family, paper, JSON schema of hyper-parameters, choices."""
        pipeline = cls().pipeline()
        variants = cls.model_json_schema().get("properties", {}).get("variant", {}).get("enum", [])
        return {
            "name": cls.name,
            "family": cls.family,
            "title": cls.title,
            "paper": cls.paper,
            "summary": (cls.__doc__ or "").strip().splitlines()[0],
            "merges": type(pipeline.settle).__name__ != "Evict",
            "compresses_while_decoding": pipeline.decode,
            "needs_budget": cls().needs_budget,
            "variants": variants,
            "choices": {
                "score": type(pipeline.score).__name__,
                "allocate": type(pipeline.allocate).__name__,
                "select": type(pipeline.select).__name__,
                "settle": type(pipeline.settle).__name__,
            },
            "parameters": cls.model_json_schema(),
            "presets": {name: cls._as_published(preset) for name, preset in cls.presets.items()},
            "reasons": dict(cls.reasons),
            **cls().held(),
            "origin": "" if cls._origin() == KVLAB else f"{cls._origin().name} {cls._origin().stamp}",
        }


METHODS: Registry[type[Method]] = Registry("method")


def register(method: type[Method]) -> type[Method]:
    """Class decorator: makes a method known by its name; raises UserError where the name is another method's."""
    METHODS.add(method.name, method)
    return method


def registered() -> dict[str, type[Method]]:
    """All methods by name, in the order they are shown."""
    return METHODS.all()


def make_method(name: str, **hyper_parameters: Any) -> Method:
    """The named method with its defaults changed by `hyper_parameters`; `preset` among them changes the defaults.

    Raises UserError for an unknown method, preset or hyper-parameter, or a value out of range.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise METHODS.unknown(name)
    return made(METHODS[name], **hyper_parameters)


def made(method: type[Method], **hyper_parameters: Any) -> Method:
    """As `make_method`, of a method in hand."""
    try:
        published = _published(method, str(hyper_parameters.pop("preset", DEFAULT)))
        return method(**(published | hyper_parameters))
    except ValidationError as error:
        raise UserError(_one_sentence(method, error)) from None


def _published(method: type[Method], preset: str) -> dict[str, Any]:
    if preset == DEFAULT:
        return {}
    if preset not in method.presets:
        known = ", ".join([DEFAULT, *method.presets])
        raise UserError(f"{method.name} has no preset {preset!r}; it has: {known}.")
    return method.presets[preset].settings()


def _one_sentence(method: type[Method], error: ValidationError) -> str:
    first, name = error.errors()[0], method.name
    if not first["loc"]:
        reason = first.get("ctx", {}).get("error", first["msg"])
        return str(reason) if isinstance(reason, UserError) else f"These settings of {name} do not fit: {reason}."
    field = ".".join(str(part) for part in first["loc"])
    known = ", ".join(method.model_fields) or "none"
    if first["type"] == "extra_forbidden":
        return f"{name} has no hyper-parameter {field!r}; it has: {known}."
    reason = first["msg"].removeprefix("Value error, ").lower().rstrip(".")
    return f"The hyper-parameter {field!r} of {name} cannot be {shown(first['input'])}: {reason}."


MOST_WHOLE = 2**20  # tokens, slots, queries: more than any prompt that is run has
MOST, LEAST = 1e6, 1e-9  # weights, ridges, exponents: beyond these float32 has nothing left to tell


def in_bounds(value: Any) -> Any:
    """The value; raises ValueError for a number that is none, too far from zero, or closer to it than makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int):
        if abs(value) > MOST_WHOLE:
            raise ValueError(f"a whole number here is at most {MOST_WHOLE:,}")
    elif not math.isfinite(value) or abs(value) > MOST or 0 < abs(value) < LEAST:
        raise ValueError(f"a number here is 0 or from {LEAST:g} to {MOST:,.0f}")
    return value


def with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema of settings whose numbers all say how far they go, for forms."""
    for field in schema.get("properties", {}).values():
        for part in field.get("anyOf", [field]):
            if part.get("type") in ("integer", "number"):
                most = MOST_WHOLE if part["type"] == "integer" else MOST
                if not {"maximum", "exclusiveMaximum"} & part.keys():
                    part["maximum"] = most
                if not {"minimum", "exclusiveMinimum"} & part.keys():
                    part["minimum"] = -most
    return schema
