"""Option groups: a dataclass of options as one parameter of several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a dataclass type by one option per field of the dataclass.

    A field is declared like an option, with a `typer.Option` annotation and a default, or is itself a group.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()

    def ungrouped(**values: Any) -> None:
        command(**{one.name: _value(one.name, one.annotation, values) for one in parameters})

    options = [option for one in parameters for option in _options(one)]
    ungrouped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    ungrouped.__annotations__ = {option.name: option.annotation for option in options}
    ungrouped.__name__, ungrouped.__doc__ = command.__name__, command.__doc__
    return ungrouped


def _value(name: str, annotation: Any, values: dict[str, Any]) -> Any:
    """A parameter's value: for a group, the dataclass built from its fields' values."""
    if not is_dataclass(annotation):
        return values[name]
    return annotation(**{one.name: _value(one.name, one.annotation, values) for one in _fields(annotation)})  # type: ignore[operator]


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """A parameter's options: for a group, those of its fields."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    return [option for one in _fields(parameter.annotation) for option in _options(one)]


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)  # resolves annotations from the group's module
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=types[one.name]) for one in fields(group)]
