"""A request's plan on the command line, and the refusal of what does not fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvlab.jobs.plan_check import tokens_of, too_big

if TYPE_CHECKING:
    from kvlab.jobs.work import Work
    from kvlab.requests.compare import CompareRequest


Force = Annotated[bool, typer.Option("--force", help="start also what is planned to be too big for this machine")]


def notes_of(request: CompareRequest, tokens: int | None = None) -> list[str]:
    """What the methods leave undone at their budgets, in sentences; of several prompts the longest is meant.

    What cannot be told before the model is loaded is left out.
    """
    from kvlab.common.errors import UserError
    from kvlab.methods import make_method
    from kvlab.requests.budget import Budget

    found: list[str] = []
    with suppress(UserError):  # whoever runs it says what is wrong with it
        count = tokens_of(request)[0] if tokens is None else tokens
        for choice in request.choices:
            if not isinstance(choice.budget, str):
                method = make_method(choice.method, **choice.hyper_parameters)
                found += method.notes(Budget(choice.budget).slots(count), count)
    return list(dict.fromkeys(found))


def check_fits(request: Work, root: Path) -> None:
    """Raises UserError, with what would make it fit, for work too big for this machine."""
    from kvlab.common.errors import UserError

    if why := too_big(request, root):
        raise UserError(f"{why} To start all the same, add --force.")
