"""The plan of what a form asks for, from the registry of methods as data: nothing is loaded, and no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.catalogue import parameters
from kvlab.catalogue.footprint import holds_in, window_notes
from kvlab.catalogue.methods import MethodEntry
from kvlab.catalogue.tasks import task_list
from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.forms import compare_form
from kvlab.jobs.size_check import Several, device_asked, longest_prompt, stand_ins, too_big
from kvlab.jobs.work import Work
from kvlab.model_info.chat_template import Manner
from kvlab.model_info.token_count import count_tokens
from kvlab.planning import Machine, Plan, find_model, make_plan, this_machine
from kvlab.planning.plan import can_plan
from kvlab.requests.compare import CompareRequest, MethodChoice, RescueRequest

MACHINE_SECONDS = 10  # the machine is asked again what is free after so long


def plan_of(
    prompt_tokens: int,
    model: str,
    chosen: Sequence[MethodEntry],
    budgets: str,
    typed: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    root: Path,
) -> Plan | None:
    """The plan of a form as it stands, for a prompt of so many tokens; None while it cannot be a request yet."""
    if not prompt_tokens:
        return None
    try:
        changed = {entry.name: parameters.changed(entry, typed.get(entry.name, {})) for entry in chosen}
        choices = compare_form.choices(chosen, compare_form.parse_budgets(budgets), changed)
        return _plan_of_choices(prompt_tokens, model, choices, options, root)
    except (UserError, ValidationError):
        return None  # what is wrong is reported where it is typed, or when the runs are requested


def plan_at_defaults(
    prompt_tokens: int, model: str, choices: Sequence[MethodChoice], options: Mapping[str, Any], root: Path
) -> Plan | None:
    """The plan of these methods and budgets at default settings, which needs no second process; None if unknown."""
    if not prompt_tokens:
        return None
    plain = {(choice.method, str(choice.budget)): MethodChoice(method=choice.method, budget=choice.budget)
             for choice in choices}  # fmt: skip
    try:
        return _plan_of_choices(prompt_tokens, model, tuple(plain.values()), options, root)
    except (UserError, ValidationError):
        return None


def _plan_of_choices(
    prompt_tokens: int, model: str, choices: tuple[MethodChoice, ...], options: Mapping[str, Any], root: Path
) -> Plan:
    request = CompareRequest(prompt="-", model=model.strip(), choices=choices, **compare_form.meant(options))
    return _plan(request, prompt_tokens, root, timed=True)


def notes_of(
    prompt_tokens: int, chosen: Sequence[MethodEntry], budgets: str, typed: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What a form's methods leave undone at its budgets, in sentences; nothing while it cannot be a request yet."""
    try:
        changed = {entry.name: parameters.changed(entry, typed.get(entry.name, {})) for entry in chosen}
        return window_notes(compare_form.choices(chosen, compare_form.parse_budgets(budgets), changed), prompt_tokens)
    except (UserError, ValidationError):
        return []


def check_fits(request: CompareRequest, root: Path) -> None:
    """Raises UserError, with what would make it fit, for a request too big for this machine, or for a layer to record
    that the model lacks.

    A model whose configuration is not on this machine yet is not judged, nor weights that accelerate may leave on the
    host.
    """
    try:
        model = find_model(request.model)
    except UserError:
        return
    request.record.check(model.layers, model.key_value_heads)
    try:
        plan = _plan(request, count_tokens(request.prompt, Manner.of(request))[0], root, timed=False)
    except UserError:
        return
    if not plan.fits and can_plan(request, plan.machine):
        raise UserError(plan.verdict)


def check_work(work: Work, root: Path) -> None:
    """Raises UserError for work of any kind that is too big for this machine.

    What the worker finds when it begins counts all the same: the machine may be fuller then.
    """
    if isinstance(work, CompareRequest):
        check_fits(work, root)
    elif not isinstance(work, RescueRequest):
        machine = _machine(device_asked(work), root, int(time.monotonic() / MACHINE_SECONDS))
        if machine.device_bytes and (why := _too_big(work, machine, root)):
            raise UserError(why)


def _too_big(work: Several, machine: Machine, root: Path) -> str:
    try:
        longest = longest_prompt(work.request, task_list()) if isinstance(work, EvalJob | SampleJob) else 0
        asked = [choice for one in stand_ins(work, longest, machine.device) for choice in one.request.choices]
        return too_big(work, longest, holds_in(asked), machine, root)
    except UserError:
        return ""  # whoever loads the model says what is wrong, or fetches what is missing


def _plan(request: CompareRequest, tokens: int, root: Path, timed: bool) -> Plan:
    machine = _machine(request.device, root, int(time.monotonic() / MACHINE_SECONDS))
    if not machine.device_bytes:
        raise UserError(f"There is no device {request.device!r} here that could be asked what it has.")
    model = find_model(request.model)
    return make_plan(request, tokens, model, holds_in(request.choices), machine, root, timed=timed)


@lru_cache(maxsize=4)
def _machine(device: str, root: Path, _moment: int) -> Machine:
    return this_machine(device, root)
