"""The plan of what a form asks for, from the registry of methods as data: nothing is loaded, and no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.auto_store import meant_store
from kvlab.bench.request import BenchJob
from kvlab.budget import Budget
from kvlab.errors import UserError
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.jobs import intake, parameters, registry
from kvlab.jobs.peaks import Several, too_big
from kvlab.jobs.prompt_lengths import longest_prompt
from kvlab.jobs.prompts import count_tokens
from kvlab.jobs.registry import MethodEntry, methods
from kvlab.jobs.spoken import Manner
from kvlab.jobs.task_list import task_list
from kvlab.jobs.work import Work
from kvlab.planning import Machine, Plan, find_model, make_plan, this_machine
from kvlab.planning.holds import Holds
from kvlab.planning.plan import can_plan
from kvlab.requests import CompareRequest, MethodChoice, RescueRequest

STORE = "store"
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
    """The plan of a form as it stands, for a prompt of so many tokens; None while it cannot be a request yet.

    A method is taken to hold what it holds with its default hyper-parameters, in the store that is chosen.
    """
    if not prompt_tokens:
        return None
    try:
        changed = {entry.name: parameters.changed(entry, typed.get(entry.name, {})) for entry in chosen}
        choices = intake.choices(chosen, intake.parse_budgets(budgets), changed)
        request = CompareRequest(prompt="-", model=model.strip(), choices=choices, **intake.meant(options))
        return _plan(request, prompt_tokens, chosen, root, timed=True)
    except (UserError, ValidationError):
        return None  # what is wrong is said where it is typed, or when the runs are asked for


def check_fits(request: CompareRequest, chosen: Sequence[MethodEntry], root: Path) -> None:
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
        plan = _plan(request, count_tokens(request.prompt, Manner.of(request))[0], chosen, root, timed=False)
    except UserError:
        return
    if not plan.fits and can_plan(request, plan.machine):
        raise UserError(plan.verdict)


def check_work(work: Work, root: Path) -> None:
    """Raises UserError for work of any kind that is too big for this machine.

    What the worker finds when it begins counts all the same: the machine may be fuller then.
    """
    if isinstance(work, CompareRequest):
        check_fits(work, methods(), root)
    elif not isinstance(work, RescueRequest):
        known = {entry.name: entry.holds for entry in methods()}
        machine = _machine(device_asked(work), root, int(time.monotonic() / MACHINE_SECONDS))
        if machine.device_bytes and (why := _too_big(work, known, machine, root)):
            raise UserError(why)


def device_asked(work: Several) -> str:
    """The device that the work names, `auto` or another; of several the first."""
    if not isinstance(work, BenchJob):
        return str(work.request.device)
    return str(work.requests[0].device if work.requests else work.changes.get("device", "auto"))


def _too_big(work: Several, known: Mapping[str, Holds], machine: Machine, root: Path) -> str:
    try:
        longest = longest_prompt(work.request, task_list()) if isinstance(work, EvalJob | SampleJob) else 0
        return too_big(work, longest, lambda choice: known.get(choice.method, Holds()), machine, root)
    except UserError:
        return ""  # whoever loads the model says what is wrong, or fetches what is missing


def _plan(request: CompareRequest, tokens: int, chosen: Sequence[MethodEntry], root: Path, timed: bool) -> Plan:
    known = {entry.name: entry for entry in chosen}

    def holds(choice: MethodChoice) -> Holds:
        entry = known.get(choice.method) or _entry(choice.method)  # the full cache in a store is another method
        return Holds() if entry is None else _held(entry, choice)

    machine = _machine(request.device, root, int(time.monotonic() / MACHINE_SECONDS))
    if not machine.device_bytes:
        raise UserError(f"There is no device {request.device!r} here that could be asked what it has.")
    return make_plan(request, tokens, find_model(request.model), holds, machine, root, timed=timed)


def _entry(name: str) -> MethodEntry | None:
    return next((entry for entry in registry.methods() if entry.name == name), None)


def _held(entry: MethodEntry, choice: MethodChoice) -> Holds:
    """What a method holds in the store of a choice; a store with settings counts as it is without them."""
    defaults = {one.name: one.default for one in parameters.parameters(entry, str(choice.preset))}
    named = str(choice.hyper_parameters.get(STORE, defaults.get(STORE)))
    store = meant_store(named, Budget(choice.budget)).partition("/")[0]
    return entry.holds.model_copy(update={"packed": entry.stores[store]}) if store in entry.stores else entry.holds


@lru_cache(maxsize=4)
def _machine(device: str, root: Path, _moment: int) -> Machine:
    return this_machine(device, root)
