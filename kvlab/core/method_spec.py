"""Parse and format specs of methods and tasks, such as `keepkv:preset=paper:rule=votes`. Torch-free."""

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

from kvlab.core.errors import UserError
from kvlab.core.validation import quote_value, read_json


def parse_value(text: str) -> JsonValue:
    """A value from the command line: parsed as JSON if possible, else the text."""
    try:
        return read_json(text)
    except ValueError:
        return text


def split_list(text: str) -> list[str]:
    """The parts of a comma-separated list; commas inside brackets belong to a value."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def parse_spec(text: str) -> tuple[str, dict[str, JsonValue]]:
    """Name and values of `name:key=value:key=value`; raises UserError if a part has no value."""
    name, *parts = text.split(":")
    values: dict[str, JsonValue] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key or not equals or not value:
            raise UserError(f"'{text}' cannot be read: write name:parameter=value, such as key_value:pairs=64.")
        if key in values:
            raise UserError(f"{quote_value(text)} names {key} twice: give it once.")
        values[key] = parse_value(value)
    return name, values


def format_spec(method: str, options: Mapping[str, JsonValue]) -> str:
    """The spec that `parse_spec` reads back: `kvmerger:sigma=1`, `h2o:flag=true`."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return ":".join([method, *(f"{name}={value}" for name, value in values.items())])
