"""Plan a form's request from the catalogue of methods: nothing is loaded, and no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.catalogue.footprint import footprints_of
from kvlab.catalogue.methods import MethodEntry
from kvlab.catalogue.tasks import task_list
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.forms import compare_form
from kvlab.jobs.size_check import BulkJob, bulk_too_big, longest_prompt, requested_device, worst_cases
from kvlab.jobs.work import Work
from kvlab.model_info.chat_template import ChatFormat
from kvlab.model_info.token_count import count_tokens
from kvlab.planning import Machine, Plan, find_model, make_plan, this_machine
from kvlab.planning.plan import can_plan
from kvlab.requests.compare import CompareRequest, RescueRequest
from kvlab.requests.live_session import LiveJob, comparison_of

MACHINE_SECONDS = 10  # after which free memory is measured again


def plan_of(
    prompt_tokens: int,
    model: str,
    chosen: Sequence[MethodEntry],
    budgets: str,
    typed: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    root: Path,
) -> Plan | None:
    """The plan of a form for a prompt of this many tokens; None while the form is incomplete or invalid."""
    try:
        choices = compare_form.choices_of_form(chosen, typed, budgets)
    except (UserError, ValidationError):
        return None  # the error is reported where it is typed, or when the runs are requested
    if not prompt_tokens:
        return None
    try:
        fields = compare_form.request_fields(options)
        request = CompareRequest(prompt="-", model=model.strip(), choices=choices, **fields)
        return _plan(request, prompt_tokens, root)
    except (UserError, ValidationError):
        return None


def check_fits(request: CompareRequest, root: Path) -> None:
    """Raises UserError, with what would make it fit, if a request is too big for this machine or records absent layers.

    Not judged: models whose configuration is not on this machine, and weights that accelerate may leave on the host.
    """
    try:
        model = find_model(request.model)
    except UserError:
        return
    request.record.check(model.layers, model.key_value_heads)
    try:
        plan = _plan(request, count_tokens(request.prompt, ChatFormat.of(request))[0], root)
    except UserError:
        return
    if not plan.fits and can_plan(request, plan.machine):
        raise UserError(plan.verdict)


def check_work(work: Work, root: Path) -> None:
    """Raises UserError for a job of any kind that is too big for this machine.

    The worker checks again when it starts, as the machine may be fuller then.
    """
    if isinstance(work, LiveJob):
        if work.request.prefixes:
            return  # nothing is read, which is what a plan is about
        work = comparison_of(work.request, "", work.max_new_tokens)
    if isinstance(work, CompareRequest):
        check_fits(work, root)
    elif not isinstance(work, RescueRequest):
        machine = _machine(requested_device(work), root, int(time.monotonic() / MACHINE_SECONDS))
        if machine.device_bytes and (why := _too_big(work, machine)):
            raise UserError(why)


def _too_big(work: BulkJob, machine: Machine) -> str:
    try:
        longest = longest_prompt(work.request, task_list()) if isinstance(work, EvalJob | SampleJob) else 0
        choices = [choice for case in worst_cases(work, longest, machine.device) for choice in case.request.choices]
        return bulk_too_big(work, longest, footprints_of(choices), machine)
    except UserError:
        return ""  # loading the model reports the error, or downloads what is missing


def _plan(request: CompareRequest, tokens: int, root: Path) -> Plan:
    machine = _machine(request.device, root, int(time.monotonic() / MACHINE_SECONDS))
    if not machine.device_bytes:
        raise UserError(f"There is no device {request.device!r} here to plan for.")
    model = find_model(request.model)
    return make_plan(request, tokens, model, footprints_of(request.choices), machine)


@lru_cache(maxsize=4)
def _machine(device: str, root: Path, _moment: int) -> Machine:
    return this_machine(device, root)
