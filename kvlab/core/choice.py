"""A method with one budget and its settings, and published settings, as data that needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, model_validator

from kvlab.core.budget import Budget
from kvlab.core.restore import Restore, token_words
from kvlab.core.validation import Strict

MOST_NEW_TOKENS = 4096
Fraction = Annotated[float, Field(gt=0, le=1)]
SlotCount = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Bytes = Annotated[str, AfterValidator(lambda text: Budget(text).amount)]


class MethodChoice(Strict):
    """One method with one budget: a share of the prompt, slots per KV head, or bytes."""

    method: str
    budget: SlotCount | Fraction | Bytes = 0.2
    hyper_parameters: dict[str, JsonValue] = Field(default_factory=dict)
    force_keep: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="positions of tokens that are never evicted"
    )
    returned: Restore | None = Field(None, description="what is restored on top of the budget")
    called: str = Field("", description="the label of a repeated run; empty: built from method and settings")

    @model_validator(mode="before")
    @classmethod
    def _stored_is_no_reference(cls, fields: Any) -> Any:
        """A full cache in a packed store is the method `packed`, one that is read in part `sparse`: no reference."""
        if not isinstance(fields, dict) or fields.get("method") != "full":
            return fields
        given = fields.get("hyper_parameters") or {}
        if given.get("read", "all") != "all":
            return fields | {"method": "sparse"}
        return fields | {"method": "packed"} if given.get("store", "native") != "native" else fields

    @property
    def preset(self) -> JsonValue:
        """The named settings the hyper-parameters start from: `default`, `paper`, `code` ..."""
        return self.hyper_parameters.get("preset", "default")

    @property
    def label(self) -> str:
        """The name in a legend, such as `keepkv 20 %`, `keepkv 20 % (paper)` or `h2o 128 slots`."""
        amount = Budget(self.budget).description
        settings = [f"{name}={value}" for name, value in sorted(self.hyper_parameters.items()) if name != "preset"]
        changed = ", ".join([*([str(self.preset)] if self.preset != "default" else []), *settings])
        name = self.called or f"{self.method} {amount}" + (f" ({changed})" if changed else "")
        forced = [f"keeping {token_words(self.force_keep)}"] if self.force_keep else []
        return " ".join([name, *forced, *([self.returned.description] if self.returned else [])])


FULL = MethodChoice(method="full", budget=1.0)
DEFAULT_METHOD = "keepkv"  # of a run that names none
DEFAULT_OF_PREFIXES = "snapkv"  # of a prefix that names none


@dataclass(frozen=True)
class Preset:
    """A published configuration of a method.

    `values`: (value, source: section, table, equation or file) by hyper-parameter. `about` names the publication;
    `beyond` says what no hyper-parameter can express.
    """

    about: str
    values: Mapping[str, tuple[Any, str]]
    beyond: str = ""

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {name: value for name, (value, _) in self.values.items()}

    def as_data(self) -> dict[str, JsonValue]:
        """The preset for forms and tables."""
        values: dict[str, JsonValue] = {
            name: {"value": list(value) if isinstance(value, tuple) else value, "source": source}
            for name, (value, source) in self.values.items()
        }
        return {"about": self.about, "beyond": self.beyond, "values": values}
