"""Method specs as text: `keepkv:preset=paper:rule=votes` as a name and its settings, and back. Free of torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

from kvlab.common.errors import UserError
from kvlab.common.validation import read_json, shown


def value_of(text: str) -> JsonValue:
    """A value of the command line: JSON where it is some, else the text itself."""
    try:
        return read_json(text)
    except ValueError:
        return text


def split_list(text: str) -> list[str]:
    """Return the parts of a comma-separated list; commas inside brackets belong to a value."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def parse_named(text: str) -> tuple[str, dict[str, JsonValue]]:
    """Return the name and the values of `name:key=value:key=value`; raises UserError where a part has no value."""
    name, *parts = text.split(":")
    values: dict[str, JsonValue] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key or not equals or not value:
            raise UserError(f"'{text}' cannot be read: write name:parameter=value, such as key_value:pairs=64.")
        if key in values:
            raise UserError(f"{shown(text)} says {key} twice: give it once.")
        values[key] = value_of(value)
    return name, values


def with_options(method: str, options: Mapping[str, JsonValue]) -> str:
    """A method with its options as the command line reads them back: `kvmerger:sigma=1`, `h2o:flag=true`."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return ":".join([method, *(f"{name}={value}" for name, value in values.items())])
