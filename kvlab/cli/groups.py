"""Options that several commands share, declared once: a dataclass of options as one parameter of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is typed as a dataclass replaced by options: that dataclass's fields.

    A field is written as an option is: a name, a type with its `typer.Option`, a default.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

    def ungrouped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    options = [option for one in parameters for option in _options(one)]
    ungrouped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    ungrouped.__annotations__ = {option.name: option.annotation for option in options}
    ungrouped.__name__, ungrouped.__doc__ = command.__name__, command.__doc__
    return ungrouped


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """What a parameter becomes: its fields where it is a group, else itself."""
    group, kind = parameter.annotation, inspect.Parameter.KEYWORD_ONLY
    if not is_dataclass(group):
        return [parameter.replace(kind=kind)]
    types = get_type_hints(group, include_extras=True)  # a group's fields may come from another module's
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=types[one.name]) for one in fields(group)]
