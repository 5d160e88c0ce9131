"""Refuse requests that do not fit, and print the methods' notes."""

from contextlib import suppress
from typing import Annotated

import typer

from kvlab.core import Budget, UserError
from kvlab.jobs.size_check import tokens_of, too_big
from kvlab.jobs.work import Work
from kvlab.requests.compare import CompareRequest

Force = Annotated[bool, typer.Option("--force", help="start even if the plan does not fit this machine")]


def notes_of(request: CompareRequest, tokens: int | None = None) -> list[str]:
    """The methods' notes on their budgets, for the longest prompt.

    Notes that need the loaded model are left out.
    """
    from kvlab.core.methods import make_method

    notes: list[str] = []
    with suppress(UserError):  # the run itself reports an invalid request
        count = tokens_of(request)[0] if tokens is None else tokens
        for choice in request.choices:
            if not isinstance(choice.budget, str):
                method = make_method(choice.method, **choice.hyper_parameters)
                notes += method.notes(Budget(choice.budget).slots(count), count)
    return list(dict.fromkeys(notes))


def check_fits(request: Work) -> None:
    """Raise UserError for work too big for this machine."""
    if why := too_big(request):
        raise UserError(f"{why} To start anyway, add --force.")
