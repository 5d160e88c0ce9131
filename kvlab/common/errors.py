"""The one exception that is meant for people."""

from __future__ import annotations

from collections.abc import Callable

_says: list[Callable[[str], str]] = []


class UserError(ValueError):
    """Raised for bad input; its text is one clear sentence that says what is wrong and what to do.

    The command line prints it and exits with status 2; the dashboard shows it in place of a result.
    """

    def __str__(self) -> str:
        text = super().__str__()
        for change in _says:
            text = change(text)
        return text


def said_with(change: Callable[[str], str]) -> None:
    """From now on every UserError of this process is said as `change` puts it: a server names no folders of its own."""
    if change not in _says:
        _says.append(change)
