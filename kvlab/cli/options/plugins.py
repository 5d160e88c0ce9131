"""The option `--plugin FILE.py`, which also applies to every process that the command starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.plugins.request import name_files

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="a Python file with your own methods, tasks or metrics; repeatable",
    ),
]


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option to a command; plug-ins are registered before the command runs."""

    def named(plugin: list[Path] | None = None, **options: Any) -> None:
        name_files(plugin or ())
        command(**options)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    named.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    named.__annotations__ = {name: found.annotation for name, found in signature.parameters.items()} | {
        "plugin": Plugins
    }
    named.__name__, named.__doc__ = command.__name__, command.__doc__
    return named
