"""Hyper-parameters from a method's JSON schema: what a form needs to show and check each one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvlab.core import UserError, read_json
from kvlab.planning.choices import MethodEntry

Kind = Literal["choice", "switch", "integer", "number", "text", "json"]
DEFAULT = "default"
PRESET = "preset"
KINDS: dict[str, Kind] = {"boolean": "switch", "integer": "integer", "number": "number", "string": "text"}


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter: kind, default, limits and description. `optional` ones may be left to the method."""

    name: str
    kind: Kind
    default: Any
    description: str
    options: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False
    open_maximum: bool = False
    optional: bool = False
    source: str = ""  # where a preset's value comes from

    @property
    def limits(self) -> str:
        """The allowed range as text, empty if there is none."""
        low = (
            None if self.minimum is None else f"{'greater than' if self.open_minimum else 'at least'} {self.minimum:g}"
        )
        high = None if self.maximum is None else f"{'less than' if self.open_maximum else 'at most'} {self.maximum:g}"
        return " and ".join(part for part in (low, high) if part)


def parameters(entry: MethodEntry, preset: str = DEFAULT) -> list[Parameter]:
    """A method's hyper-parameters, the variant first, with the preset's defaults."""
    definitions = entry.parameters.get("$defs", {})
    fields = []
    for name, schema in entry.hyper_parameters.items():
        body, optional = _resolve(schema, definitions)
        options = tuple(body.get("enum", ())) or ((body["const"],) if "const" in body else ())
        kind: Kind = "choice" if options else KINDS.get(body.get("type", ""), "json")
        fields.append(
            Parameter(
                name=name,
                kind=kind,
                default=schema.get("default"),
                description=str(schema.get("description") or body.get("description", "")),
                options=options,
                minimum=body.get("minimum", body.get("exclusiveMinimum")),
                maximum=body.get("maximum", body.get("exclusiveMaximum")),
                open_minimum="exclusiveMinimum" in body,
                open_maximum="exclusiveMaximum" in body,
                optional=optional,
            )
        )
    if preset in entry.presets:
        published = entry.presets[preset].values
        fields = [
            replace(parameter, default=published[parameter.name].value, source=published[parameter.name].source)
            if parameter.name in published
            else parameter
            for parameter in fields
        ]
    return sorted(fields, key=lambda parameter: parameter.name != "variant")


def changed_values(entry: MethodEntry, values: Mapping[str, Any]) -> dict[str, Any]:
    """The preset if `values` name one, and the values that differ from its, checked.

    Raises UserError if there is no such preset, a value is out of range, or a structured value is not valid JSON.
    """
    preset = values.get(PRESET, DEFAULT)
    if preset not in (DEFAULT, *entry.presets):
        names = ", ".join((DEFAULT, *entry.presets))
        raise UserError(f"{entry.name} has no preset {preset!r}; it has: {names}.")
    different: dict[str, Any] = {} if preset == DEFAULT else {PRESET: preset}
    for parameter in parameters(entry, preset):
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if parameter.kind == "json" and isinstance(value, str):
            try:
                value = read_json(value)
            except ValueError as error:
                example = json.dumps(parameter.default)
                raise UserError(
                    f"{entry.name}: {parameter.name} is not valid JSON: write it like {example}."
                ) from error
        if parameter.kind in ("integer", "number") and value is not None:
            low = parameter.minimum
            high = parameter.maximum
            is_above = low is None or value > low or (value == low and not parameter.open_minimum)
            is_below = high is None or value < high or (value == high and not parameter.open_maximum)
            if not (is_above and is_below):
                raise UserError(f"{entry.name}: {parameter.name} is {value:g}, and must be {parameter.limits}.")
        if value != parameter.default:
            different[parameter.name] = value
    return different


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The part of a schema that gives its type, and whether null is allowed; of several types neither is chosen."""
    if "$ref" in schema:
        return _resolve(definitions.get(schema["$ref"].rsplit("/", 1)[-1], {}), definitions)
    branches = schema.get("anyOf") or schema.get("allOf")
    if not branches:
        return schema, False
    typed = [branch for branch in branches if branch.get("type") != "null"]
    optional = len(typed) < len(branches)
    return (_resolve(typed[0], definitions)[0], optional) if len(typed) == 1 else ({}, optional)
