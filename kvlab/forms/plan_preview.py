"""Plan a form's request from the catalogue of methods: nothing is loaded, and no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.forms import compare_form
from kvlab.jobs.size_check import refusal, requested_device
from kvlab.jobs.work import Work
from kvlab.models.info.size import find_model
from kvlab.planning.machine import Machine, this_machine
from kvlab.planning.method_footprints import footprints_of
from kvlab.planning.methods import MethodEntry
from kvlab.planning.plan import Plan, make_plan
from kvlab.planning.tasks import TaskList, task_list
from kvlab.requests.compare import CompareRequest, RestoreRequest

MACHINE_SECONDS = 10  # after which free memory is measured again


def plan_of(
    prompt_tokens: int,
    model: str,
    chosen: Sequence[MethodEntry],
    budgets: str,
    typed: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
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
        machine = _machine(request.device, int(time.monotonic() / MACHINE_SECONDS))
        if not machine.device_bytes:
            return None  # there is no such device here to plan for
        return make_plan(request, prompt_tokens, find_model(request.model), footprints_of(request.choices), machine)
    except (UserError, ValidationError):
        return None


def check_fits(request: CompareRequest) -> None:
    """Raises UserError if a comparison records layers that the model lacks, or is too big for this machine."""
    try:
        model = find_model(request.model)
    except UserError:
        return
    request.record.check(model.layers, model.key_value_heads)
    check_work(request)


def check_work(work: Work) -> None:
    """Raises UserError for a job of any kind that is too big for this machine.

    Models and devices that are not on this machine are not judged. The worker checks again when it starts, as the
    machine may be fuller then.
    """
    if isinstance(work, RestoreRequest):
        return
    machine = _machine(requested_device(work), int(time.monotonic() / MACHINE_SECONDS))
    if not machine.device_bytes:
        return
    try:
        listed = task_list() if isinstance(work, EvalJob | SampleJob) else TaskList(tasks=(), formats=())
        why = refusal(work, machine, footprints_of, listed)
    except UserError:
        return  # loading the model reports the error, or downloads what is missing
    if why:
        raise UserError(why)


@lru_cache(maxsize=4)
def _machine(device: str, _moment: int) -> Machine:
    return this_machine(device)
