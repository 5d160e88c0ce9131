"""Options that several commands share, declared once: a dataclass of options as one parameter of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is typed as a dataclass replaced by options: that dataclass's fields.

    A field is written as an option is: a name, a type with its `typer.Option`, a default; or it is a group itself.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()

    def ungrouped(**given: Any) -> None:
        command(**{one.name: _value(one.name, one.annotation, given) for one in parameters})

    options = [option for one in parameters for option in _options(one)]
    ungrouped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    ungrouped.__annotations__ = {option.name: option.annotation for option in options}
    ungrouped.__name__, ungrouped.__doc__ = command.__name__, command.__doc__
    return ungrouped


def _value(name: str, annotation: Any, given: dict[str, Any]) -> Any:
    """What a parameter is given: the group made of its fields' values where it is one, else its own value."""
    if not is_dataclass(annotation):
        return given[name]
    return annotation(**{one.name: _value(one.name, one.annotation, given) for one in _fields(annotation)})  # type: ignore[operator]


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """What a parameter becomes: its fields' options where it is a group, else itself."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    return [option for one in _fields(parameter.annotation) for option in _options(one)]


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)  # a group's fields may come from another module's
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=types[one.name]) for one in fields(group)]
