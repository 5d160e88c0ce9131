"""A request's plan on the command line, and the refusal of what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlab.planning import Machine, Plan
    from kvlab.requests import CompareRequest


def plan_of(request: CompareRequest, root: Path, tokens: int | None = None, machine: Machine | None = None) -> Plan:
    """The plan of a request; the prompt's tokens are counted unless given.

    Raises UserError for an unknown method, or a model whose configuration is not on this machine.
    """
    from kvlab.engine.room import holds_of
    from kvlab.jobs.prompts import count_tokens
    from kvlab.planning import find_model, make_plan, this_machine

    model = find_model(request.model)
    tokens = count_tokens(request.prompt, request.model)[0] if tokens is None else tokens
    return make_plan(request, tokens, model, holds_of, machine or this_machine(request.device, root), root)


def check_fits(request: CompareRequest, root: Path) -> None:
    """Raises UserError, with what would make it fit, for a request too big for this machine.

    A model that nothing is known of here yet is not judged.
    """
    from kvlab.errors import UserError

    try:
        plan = plan_of(request, root)
    except UserError:
        return  # whoever loads the model says what is wrong, or fetches what is missing
    if not plan.fits:
        raise UserError(f"{plan.verdict} To start all the same, add --force.")
