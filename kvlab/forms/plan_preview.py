"""Plan a form's request from the catalogue of methods: nothing is loaded, and no torch."""

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from kvlab.common.formatting import join_words, model_title, prompts
from kvlab.core import Budget, UserError
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.forms import compare_form, measurement_job
from kvlab.jobs.size_check import refusal, requested_device
from kvlab.jobs.work import Work
from kvlab.models.info.size import find_model
from kvlab.planning.choices import MethodEntry, TaskList, task_list
from kvlab.planning.method_footprints import footprint_of, footprints_of, window_notes
from kvlab.planning.plan import Machine, Plan, make_plan, this_machine
from kvlab.requests.compare import CompareRequest, RestoreRequest


def run_notes(
    tokens: int,
    model: str,
    chosen: Sequence[MethodEntry],
    budgets: str,
    typed: Mapping[str, Mapping[str, Any]],
    chunk: int | None = None,
) -> list[str]:
    """One sentence for each method that will fail with this model or prefill `chunk`, or whose window is its budget.

    `tokens` are those of the prompt. Empty while the form is incomplete or invalid.
    """
    try:
        choices = compare_form.choices_of_form(chosen, typed, budgets)
        notes = window_notes(choices, tokens)
        windows = {choice.method: footprint_of(choice).window for choice in choices}
    except (UserError, ValidationError):
        return []
    changed = {choice.method: choice.hyper_parameters for choice in choices}
    for entry in chosen:
        unfitted = entry.name in measurement_job.LEARNS and not measurement_job.ships(model)
        if unfitted and measurement_job.setting(entry.name) not in changed[entry.name]:
            notes.append(
                f"{entry.title} has no file fitted to {model_title(model)}, so its run fails unless the weights are "
                "mini's: fit it, or leave it out."
            )
        window = windows[entry.name]
        if chunk is not None and chunk < min(window, tokens):
            notes.append(
                f"{entry.title} needs the last {window} tokens of the prompt in one pass: use a prefill chunk of at "
                f"least {window}."
            )
    return notes


def run_summary(request: CompareRequest, plan: Plan | None = None) -> str:
    """`5 methods at 20 % beside the full cache, fits`; without a plan nothing is said of the fit."""
    compressed = [choice for choice in request.runs if choice.method != "full"]
    # `5 methods at 20 %`; methods that take no budget are named on their own.
    unbudgeted = list(dict.fromkeys(one.method for one in compressed if Budget(one.budget).keeps_all))
    budgeted = [choice for choice in compressed if choice.method not in unbudgeted]
    budgets = dict.fromkeys(Budget(choice.budget).description for choice in budgeted)
    names = {choice.method for choice in budgeted}
    groups = []
    if names:
        groups.append(f"{len(names)} method{'' if len(names) == 1 else 's'} at {join_words(list(budgets))}")
    if unbudgeted:
        groups.append(f"{join_words(unbudgeted)} at {'its' if len(unbudgeted) == 1 else 'their'} own budget")
    parts = [" and ".join(groups) or "the full cache alone"]
    if compressed and len(request.runs) > 1:
        parts[0] += " beside the full cache"
    if request.comparisons > 1:
        parts[0] += f" over {prompts(request.comparisons)}"
    if plan is not None:
        parts.append("fits" if plan.fits else "does not fit")
    return ", ".join(parts)


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
