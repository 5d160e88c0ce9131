"""A command that must succeed, a prompt for it, and every command there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from kvlab.cli import commands

PROMPT = "The quick brown fox jumps over the lazy dog while the band plays on. " * 3


def kvlab(*arguments: str) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(commands, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group with the words that name it, the whole first."""

    def visit(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield path, command
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield from visit(command.get_command(None, name), (*path, name))

    return visit(typer.main.get_command(commands), ())
