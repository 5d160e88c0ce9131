"""A command that must succeed, and a prompt for it."""

from __future__ import annotations

from typer.testing import CliRunner

from kvlab.cli import commands

PROMPT = "The quick brown fox jumps over the lazy dog while the band plays on. " * 3


def kvlab(*arguments: str) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(commands, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
