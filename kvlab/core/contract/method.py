"""Base class and registry of methods: hyper-parameters that compose a pipeline."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from kvlab.core.budget import STORE_RULES, Amount, Budget, window_note
from kvlab.core.contract.parts import PAGE_HEADS, PAGE_RULES, optional
from kvlab.core.contract.pipeline import Pipeline, packed_sizes
from kvlab.core.contract.preset import DEFAULT, MOST, MOST_WHOLE, PAPER, Preset, check_number
from kvlab.core.contract.sparse_attention import EVERYTHING, SPARSE_ATTENTIONS, SparseAttention, sparse_attention_of
from kvlab.core.errors import UserError
from kvlab.core.plugins.load import Registry
from kvlab.core.plugins.origin import KVLAB
from kvlab.core.stores import NATIVE, STORES, store_of, store_under
from kvlab.core.validation import quote_value

PAGES = ("page", "page_rule", "page_heads")


# The field `store` of a method, whose default some methods change; the stores are in its JSON schema for forms.
STORE_FIELD: Mapping[str, Any] = {
    "description": "storage format of settled slots",
    "json_schema_extra": lambda schema: schema.update(enum=[*STORES]),
}


class Method(BaseModel, ABC):
    """A compression method. Subclasses declare hyper-parameters as fields and compose a pipeline from them.

    `presets` are published configurations by name: `paper`, `code` if the authors' code differs from it, and others.
    `reasons` explains for each hyper-parameter why its default differs from a preset or, if `paper` leaves it open,
    where the default comes from; every hyper-parameter is in one of the two.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    store: str = Field(NATIVE, **STORE_FIELD)
    page: int = Field(
        1,
        ge=1,
        le=1024,
        description="keep or evict whole pages of this many tokens, as an engine does; what is found then depends on a "
        "token's place in its page (kvlab table --of phase)",
    )
    page_rule: str = Field(
        "any",
        description="order of pages: the best place of a token (any), or mean or maximum of the scores",
        json_schema_extra={"enum": [*PAGE_RULES]},
    )
    page_heads: str = Field(
        "union",
        description="a page holds all heads of a layer (union) or of the model, or each head has pages of its own",
        json_schema_extra={"enum": [*PAGE_HEADS]},
    )

    read: str = Field(
        EVERYTHING,
        description="slots that a decode step reads",
        json_schema_extra=lambda schema: schema.update(enum=[EVERYTHING, *SPARSE_ATTENTIONS]),
    )
    read_share: float | None = Field(None, ge=0.001, le=1, description="share of them; none: its own")

    name: ClassVar[str]
    family: ClassVar[str]  # reference | eviction | merging | pooling | budget-free | quantising | composition
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    needs_budget: ClassVar[bool] = True
    keeps_window: ClassVar[bool] = False  # the newest tokens of the prompt, by the setting `window`, always stay
    presets: ClassVar[Mapping[str, Preset]] = {}
    reasons: ClassVar[Mapping[str, str]] = {}
    # Settings that saved rows lack: they are saved only where they differ from the default, so that those rows count.
    added: ClassVar[tuple[str, ...]] = ()

    @field_validator("*")
    @classmethod
    def _check_value(cls, value: Any, field: ValidationInfo) -> Any:
        if field.field_name == "store":
            store_of(value)
        known = {"page_rule": PAGE_RULES, "page_heads": PAGE_HEADS}.get(field.field_name or "")
        if known is not None and value not in known:
            raise ValueError(f"use {' or '.join(known)}")
        return check_number(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # Add bounds to all numbers of a JSON schema, for forms.
        schema = handler.resolve_ref_schema(handler(core))
        for field in schema.get("properties", {}).values():
            for part in field.get("anyOf", [field]):
                if part.get("type") in ("integer", "number"):
                    most = MOST_WHOLE if part["type"] == "integer" else MOST
                    if not {"maximum", "exclusiveMaximum"} & part.keys():
                        part["maximum"] = most
                    if not {"minimum", "exclusiveMinimum"} & part.keys():
                        part["minimum"] = -most
        return schema

    @model_validator(mode="before")
    @classmethod
    def _gather_sparse_attention(cls, values: Any) -> Any:
        """Settings of sparse attention that stand by themselves, as in `read=quest:least=8`, become part of `read`."""
        if not isinstance(values, dict) or not isinstance(values.get("read"), str):
            return values
        sparse_attention = SPARSE_ATTENTIONS.get(values["read"].partition("/")[0])
        settings = set() if sparse_attention is None else sparse_attention.model_fields.keys() - cls.model_fields
        moved = [name for name in values if name in settings]
        parts = (f"/{name}={json.dumps(values[name])}" for name in moved)
        rest = {name: value for name, value in values.items() if name not in moved}
        return rest | {"read": values["read"] + "".join(parts)}

    @property
    def sparse_attention(self) -> SparseAttention | None:
        """Which slots a decode step reads; None: all of them."""
        return sparse_attention_of(self.read, self.read_share)

    @model_validator(mode="after")
    def _check_composition(self) -> Self:
        try:
            sparse_attention_of(self.read, self.read_share)
        except UserError as error:
            raise PydanticCustomError("sparse_attention", "{reason}", {"reason": str(error), "error": error}) from error
        if self.page > 1 and self.family in ("reference", "quantising"):
            raise UserError(f"{self.name} evicts nothing: leave page at 1.")
        if self.page > 1 and self.page_heads == "model" and not self.needs_budget:
            raise UserError(f"{self.name} takes no budget that layers could share equally: use page_heads 'union'.")
        if self.page > 1:
            self.paged_pipeline()
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings as saved in runs, without what older runs lack: pages of one token, a store that is native anyway,
        and the reading of everything."""
        hidden = {*PAGES} if self.page == 1 else set()
        if self.store == type(self).model_fields["store"].default == NATIVE:
            hidden.add("store")
        if self.read == EVERYTHING:
            hidden.add("read")
        if self.read_share is None:
            hidden.add("read_share")
        hidden |= {name for name in self.added if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in dump(self).items() if name not in hidden}

    @abstractmethod
    def pipeline(self) -> Pipeline:
        """The method as score, allocate, select and settle."""

    def paged_pipeline(self) -> Pipeline:
        """The pipeline that caches run: in whole pages if `page` is above 1."""
        from kvlab.core.methods.wrappers.page_selector import in_whole_pages  # its package imports every method

        return in_whole_pages(self.pipeline(), self.page, self.page_rule, self.page_heads)  # type: ignore[arg-type]  # checked by pydantic

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        """Notes about a run with this average budget per head that the settings alone do not show; often none.

        For example, that the budget leaves no room beyond the method's window.
        """
        store = ""
        if not self.needs_budget and self.store in STORE_RULES:
            store = (
                f"{self.title} takes no budget, so that store={self.store} has no share of the bytes to go by: slots "
                "are held natively. Name a store, such as store=int8."
            )
        return list(filter(None, [window_note(self.title, self.own_window, budget_slots, prompt_tokens), store]))

    @property
    def own_window(self) -> int:
        """Newest prompt tokens that always stay, so that a budget must exceed them; 0: none."""
        return getattr(self, "window", 0) if self.keeps_window else 0

    def query_probe(self) -> Any:
        """What a recorded comparison keeps of the full cache's queries for this method's figures; None for most.

        An object with the number of first tokens to leave out of the statistics of hidden states (`sinks`), the number
        of the prompt's last queries it uses (`rows`), and `arrays(slots, seen, prompt_tokens, inner_states, dtype)`:
        tensors by name (`kvlab.trace.schema.ARRAYS`) from the slots and the pass of prompt and continuation, and mean
        and deviation of the prompt's hidden states without the sinks.
        """
        return None

    def differences(self, preset: str = PAPER) -> dict[str, JsonValue]:
        """The preset's values of hyper-parameters that differ from it; empty without such a preset."""
        published = self.presets[preset].settings() if preset in self.presets else {}
        theirs = type(self)(**published).model_dump(mode="json")
        ours = self.model_dump(mode="json")
        return {name: theirs[name] for name in published if ours[name] != theirs[name]}

    def footprint(self, budget: Amount | None = None) -> dict[str, JsonValue]:
        """What its cache holds, for a memory plan (`kvlab.planning.choices.Footprint`).

        Stores `auto` and `adaptive` are resolved by `budget`, and native without one.
        """
        pipeline = self.paged_pipeline()
        store = store_of(self.store) if budget is None else store_under(self.store, Budget(budget))
        return {
            "compresses": self.family != "reference",
            "needs_budget": self.needs_budget,
            "decode": pipeline.decode,
            "buffer": pipeline.buffer,
            "recalled": pipeline.recalled,
            "seeks": optional(pipeline.settle, "seeks"),
            **pipeline.slot_bytes(),
            **pipeline.head_bytes(),
            "packed": packed_sizes(store, pipeline),
        }

    def footprints(self) -> dict[str, JsonValue]:
        """Data for forms, which choose the store last: the footprint, and slot sizes in all stores."""
        pipeline = self.pipeline()
        stores: JsonValue = {
            name: packed_sizes(store, pipeline) for name, store in STORES.items() if name not in STORE_RULES
        }
        return {"holds": self.footprint(), "stores": stores, "window": self.own_window}

    @classmethod
    def describe(cls) -> dict[str, JsonValue]:
        """The method as data for forms and tables: name, family, paper, JSON schema of hyper-parameters, choices."""
        pipeline = cls().pipeline()
        origin = METHODS.origin(cls.name)
        presets: dict[str, JsonValue] = {}
        for name, preset in cls.presets.items():
            method = cls(**preset.settings())
            presets[name] = preset.as_data() | {"needs_budget": method.needs_budget} | method.footprints()
        variants = cls.model_json_schema().get("properties", {}).get("variant", {}).get("enum", [])
        return {
            "name": cls.name,
            "family": cls.family,
            "title": cls.title,
            "paper": cls.paper,
            "summary": " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()),
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
            "presets": presets,
            "reasons": dict(cls.reasons),
            **cls().footprints(),
            "origin": "" if origin == KVLAB else f"{origin.name} {origin.stamp}",
        }


# Settings of many methods, each of which has its own default.
Sinks = Annotated[int, Field(ge=0, description="first tokens that always stay")]
Recent = Annotated[int, Field(ge=1, description="last tokens that always stay")]
Decoding = Annotated[Literal["keep", "budget"], Field(description="keep generated tokens, or let them compete")]
PromptTokens = Annotated[
    Literal["compete", "keep"],
    Field(description="prompt tokens compete, or stay as long as the budget holds them"),
]

METHODS: Registry[type[Method]] = Registry("method")


def register(method: type[Method]) -> type[Method]:
    """Class decorator that registers a method by name; raises UserError if the name is taken."""
    METHODS.add(method.name, method)
    return method


def registered() -> dict[str, type[Method]]:
    """All methods by name, in display order."""
    return METHODS.all()


def make_method(name: str, **hyper_parameters: Any) -> Method:
    """Create a method by name; `hyper_parameters` override defaults, and `preset` replaces the defaults.

    Raises UserError for an unknown method, preset or hyper-parameter, or a value out of range.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise METHODS.unknown(name)
    return build_method(METHODS[name], **hyper_parameters)


def build_method(method: type[Method], **hyper_parameters: Any) -> Method:
    """As `make_method`, for a method class."""
    preset = str(hyper_parameters.pop("preset", DEFAULT))
    if preset != DEFAULT and preset not in method.presets:
        known = ", ".join([DEFAULT, *method.presets])
        raise UserError(f"{method.name} has no preset {preset!r}; it has: {known}.")
    published = {} if preset == DEFAULT else method.presets[preset].settings()
    try:
        return method(**(published | hyper_parameters))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ").lower().rstrip(".")
        sentence = f"The hyper-parameter {field!r} of {method.name} cannot be {quote_value(first['input'])}: {reason}."
        if not field:
            cause = first.get("ctx", {}).get("error", first["msg"])
            sentence = str(cause) if isinstance(cause, UserError) else f"Invalid settings of {method.name}: {cause}."
        elif first["type"] == "extra_forbidden":
            known = ", ".join(method.model_fields) or "none"
            sentence = f"{method.name} has no hyper-parameter {field!r}; it has: {known}."
        raise UserError(sentence) from None


class DecodeCompression(Method):
    """A method that compresses the prompt and, with `decode=budget`, again whenever `buffer` tokens have gathered.

    The newest queries are kept for these decisions (they count as bytes), and slots are rescored with them. A head
    never holds more than its budget plus `buffer` generated tokens.
    """

    decode: Decoding = "keep"
    buffer: int = Field(128, ge=1, description="with `decode=budget`: generated tokens kept before each decision")

    def with_decoding(self, prompt_only: Pipeline) -> Pipeline:
        """The pipeline with its behaviour while decoding."""
        return prompt_only if self.decode == "keep" else replace(prompt_only, decode=True, buffer=self.buffer)

    going_on = with_decoding  # type: ignore[pydantic-field]  # as plug-ins have called it before
