"""Decorators that change a command's options: groups of options, and `--plugin FILE.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kvlab.core.plugins.load import name_files

Command = Callable[..., None]
KEYWORD = inspect.Parameter.KEYWORD_ONLY
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE.py", help="a Python file with your own methods, tasks or metrics; repeatable"
    ),
]


def with_parameters(wrapper: Command, command: Command, parameters: list[inspect.Parameter]) -> Command:
    """Give `wrapper` the command's name and docstring, and these parameters, which become its options."""
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    return wrapper


def parameters_of(command: Command) -> list[inspect.Parameter]:
    """The command's parameters, with their annotations evaluated."""
    return list(inspect.signature(command, eval_str=True).parameters.values())


def with_plugins(command: Command) -> Command:
    """Add the option `--plugin`: plug-ins are registered before the command runs, and in every process it starts."""

    def named(plugin: list[Path] | None = None, **options: Any) -> None:
        name_files(plugin or ())
        command(**options)

    option = inspect.Parameter("plugin", KEYWORD, default=None, annotation=Plugins)
    return with_parameters(named, command, [*parameters_of(command), option])


def group_parameters(command: Command) -> Command:
    """Replace each parameter of a dataclass type by one option per field of the dataclass.

    A field is declared like an option, with a `typer.Option` annotation and a default, or is itself a group.
    """
    parameters = parameters_of(command)

    def ungrouped(**values: Any) -> None:
        command(**{one.name: _value(one.name, one.annotation, values) for one in parameters})

    return with_parameters(ungrouped, command, [option for one in parameters for option in _options(one)])


def _value(name: str, annotation: Any, values: dict[str, Any]) -> Any:
    """A parameter's value: for a group, the dataclass built from its fields' values."""
    if not is_dataclass(annotation):
        return values[name]
    return annotation(**{one.name: _value(one.name, one.annotation, values) for one in _fields(annotation)})  # type: ignore[operator]  # a dataclass


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """A parameter's options: for a group, those of its fields."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=KEYWORD)]
    return [option for one in _fields(parameter.annotation) for option in _options(one)]


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)  # resolves annotations from the group's module
    named = ((one.name, one.default, types[one.name]) for one in fields(group))
    return [inspect.Parameter(name, KEYWORD, default=default, annotation=kind) for name, default, kind in named]
