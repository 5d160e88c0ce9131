"""The exception whose message is for the user."""

from __future__ import annotations

from collections.abc import Callable

_rewriters: list[Callable[[str], str]] = []


class UserError(ValueError):
    """Bad input; the message is one clear sentence that says what is wrong and what to do.

    The command line prints it and exits with status 2; the dashboard shows it in place of a result.
    """

    def __str__(self) -> str:
        text = super().__str__()
        for change in _rewriters:
            text = change(text)
        return text


def rewrite_messages(change: Callable[[str], str]) -> None:
    """Pass every UserError message of this process through `change`, such as to hide the server's paths."""
    if change not in _rewriters:
        _rewriters.append(change)
