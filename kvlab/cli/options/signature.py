"""What a command's parameters become: options, one `--set NAME=VALUE` for its rare settings, and `--plugin FILE.py`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

from kvlab.core import SETTINGS, UserError, quote_value
from kvlab.core.plugins.load import name_files

Command = Callable[..., None]
KEYWORD = inspect.Parameter.KEYWORD_ONLY
SET = "set_"  # the parameter that collects the rare settings
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE.py", help="a Python file with your own methods, tasks or metrics; repeatable"
    ),
]


@dataclass(frozen=True)
class Setting:
    """Annotates a parameter that is set by `--set NAME=VALUE`, as few users of the command need it."""

    help: str


def with_parameters(wrapper: Command, command: Command, parameters: list[inspect.Parameter]) -> Command:
    """Give `wrapper` the command's name and docstring, and these parameters, which become its options."""
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    return wrapper


def with_plugins(command: Command) -> Command:
    """Add the option `--plugin`: plug-ins are registered before the command runs, and in every process it starts."""

    def with_named_plugins(plugin: list[Path] | None = None, **options: Any) -> None:
        name_files(plugin or ())
        command(**options)

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    option = inspect.Parameter("plugin", KEYWORD, default=None, annotation=Plugins)
    return with_parameters(with_named_plugins, command, [*parameters, option])


def group_parameters(command: Command) -> Command:
    """Replace each parameter of a dataclass type by one option per field, and all settings by `--set NAME=VALUE`.

    A field is declared like an option, with a `typer.Option` annotation and a default, like a setting, with a `Setting`
    annotation and a default, or is itself a group.
    """
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    leaves = [leaf for parameter in parameters for leaf in _leaves(parameter)]
    settings = {leaf.name: leaf for leaf in leaves if setting_of(leaf)}
    options = [leaf for leaf in leaves if leaf.name not in settings]
    if settings:
        lines = [f"{name}: {setting_of(leaf)}" for name, leaf in settings.items()]
        words = f"a rare setting; repeatable. {'. '.join(lines)}"
        annotation = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=words)]
        options.append(inspect.Parameter(SET, KEYWORD, default=None, annotation=annotation))

    def ungrouped(**values: Any) -> None:
        texts = values.pop(SET, None) or []
        SETTINGS.clear()
        SETTINGS.update(settings)
        values |= {name: leaf.default for name, leaf in settings.items()} | parse_settings(texts, settings)
        command(**{one.name: _value(one.name, one.annotation, values) for one in parameters})

    return with_parameters(ungrouped, command, options)


def parse_settings(texts: list[str], settings: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """Values from `NAME=VALUE`; raises UserError for an unknown name or a value that its type does not allow."""
    values = {}
    for text in texts:
        written, equals, value = text.partition("=")
        name = written.strip().replace("-", "_")
        if not equals or name not in settings:
            raise UserError(f"--set takes NAME=VALUE, not {quote_value(text)}; the names are {', '.join(settings)}.")
        try:
            values[name] = TypeAdapter(get_args(settings[name].annotation)[0]).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise UserError(
                f"--set {name} cannot be {quote_value(value)}: {message[0].lower()}{message[1:]}."
            ) from None
    return values


def setting_of(parameter: inspect.Parameter) -> str:
    """The help of a parameter that is a setting; empty for an option."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark.help for mark in marks if isinstance(mark, Setting)), "")


def _value(name: str, annotation: Any, values: dict[str, Any]) -> Any:
    """A parameter's value: for a group, the dataclass built from its fields' values."""
    if not is_dataclass(annotation):
        return values[name]
    return annotation(**{one.name: _value(one.name, one.annotation, values) for one in _fields(annotation)})  # type: ignore[operator]  # a dataclass


def _leaves(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """The options and settings of a parameter: for a group, those of its fields."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=KEYWORD)]
    return [leaf for field in _fields(parameter.annotation) for leaf in _leaves(field)]


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)  # resolves annotations from the group's module
    return [
        inspect.Parameter(field.name, KEYWORD, default=field.default, annotation=types[field.name])
        for field in fields(group)
    ]
