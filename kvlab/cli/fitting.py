"""A request's plan on the command line, and the refusal of what does not fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvlab.jobs.peaks import Several
    from kvlab.jobs.work import Work
    from kvlab.planning import Machine, Plan
    from kvlab.requests import CompareRequest


Force = Annotated[bool, typer.Option("--force", help="start also what is planned to be too big for this machine")]


def plan_of(
    request: CompareRequest,
    root: Path,
    tokens: int | None = None,
    machine: Machine | None = None,
    *,
    timed: bool = True,
) -> Plan:
    """The plan of a request; the tokens of its prompt, of several the longest, are counted unless given.

    Raises UserError for an unknown method, a device that is not here, or a model whose configuration is not.
    """
    from kvlab.engine.room import holds_of, machine_of
    from kvlab.models.load import pick_device
    from kvlab.planning import find_model, make_plan

    model = find_model(request.model)
    if tokens is None:
        tokens, _ = tokens_of(request)
    machine = machine or machine_of(pick_device(request.device), root)
    if timed:
        measure_once(machine, root)
    return make_plan(request, tokens, model, holds_of, machine, root, timed=timed)


def tokens_of(request: CompareRequest) -> tuple[int, bool]:
    """The tokens of a request's prompt, of several the longest, and whether they were counted or estimated."""
    from kvlab.jobs.prompts import count_tokens
    from kvlab.jobs.spoken import Manner

    one = longest(request)
    return count_tokens(one.prompt, Manner.of(one))


def notes_of(request: CompareRequest, tokens: int | None = None) -> list[str]:
    """What the methods leave undone at their budgets, in sentences; of several prompts the longest is meant.

    What cannot be told before the model is loaded is left out.
    """
    from kvlab.budget import Budget
    from kvlab.errors import UserError
    from kvlab.methods import make_method

    found: list[str] = []
    with suppress(UserError):  # whoever runs it says what is wrong with it
        count = tokens_of(request)[0] if tokens is None else tokens
        for choice in request.choices:
            if not isinstance(choice.budget, str):
                method = make_method(choice.method, **choice.hyper_parameters)
                found += method.notes(Budget(choice.budget).slots(count), count)
    return list(dict.fromkeys(found))


def longest(request: CompareRequest) -> CompareRequest:
    """The comparison of the longest of several prompts; of repeats, which are alike, the first."""
    from kvlab.jobs.batch import repeat_request

    if not request.is_batch:
        return request
    lengths = [len(one.prompt) for one in request.prompts] or [0]
    return repeat_request(request, "-", 1 + lengths.index(max(lengths)))


def measure_once(machine: Machine, root: Path) -> None:
    """Let torch say how fast a GPU that is here is, if nobody has of late; of a CPU numpy says it."""
    import torch

    from kvlab.engine.speed import measure
    from kvlab.planning.seconds import keep_speed, known_speed

    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type != machine.device or not root.is_dir():
        return
    known = known_speed(machine, root)
    if known is None or not known.holds:
        keep_speed(machine, root, measure(torch.device(machine.device)))


def check_fits(request: Work, root: Path) -> None:
    """Raises UserError, with what would make it fit, for work too big for this machine."""
    from kvlab.errors import UserError

    if why := too_big(request, root):
        raise UserError(f"{why} To start all the same, add --force.")


def too_big(request: Work, root: Path) -> str:
    """The plan's verdict on work of any kind that is too big for this machine; empty where it fits.

    A model that nothing is known of here yet is not judged, nor a device that is not here, nor weights that accelerate
    may leave on the host.
    """
    from kvlab.errors import UserError
    from kvlab.planning.plan import can_plan
    from kvlab.requests import CompareRequest, RescueRequest

    if isinstance(request, RescueRequest):
        return ""  # it runs again what ran here
    try:
        if not isinstance(request, CompareRequest):
            return _too_big(request, root)
        plan = plan_of(request, root, timed=False)
    except UserError:
        return ""  # whoever loads the model says what is wrong, or fetches what is missing
    return plan.verdict if not plan.fits and can_plan(request, plan.machine) else ""


def _too_big(work: Several, root: Path) -> str:
    from kvlab.bench.presets import preset_requests
    from kvlab.bench.request import BenchJob
    from kvlab.engine.room import holds_of, machine_of
    from kvlab.evaluate.request import EvalJob, SampleJob
    from kvlab.jobs.fitting import device_asked
    from kvlab.jobs.peaks import too_big
    from kvlab.jobs.prompt_lengths import longest_prompt
    from kvlab.jobs.task_list import TaskEntry, TaskList
    from kvlab.models.load import pick_device
    from kvlab.tasks.registry import TASKS

    longest = 0
    if isinstance(work, BenchJob) and work.preset:
        work = BenchJob(name=work.name, requests=preset_requests(work.preset, **work.changes))
    if isinstance(work, EvalJob | SampleJob):
        tasks = (TaskEntry(name=name, lengths=one.lengths, uses_depth=one.uses_depth) for name, one in TASKS.items())
        longest = longest_prompt(work.request, TaskList(tasks=tuple(tasks), formats=()))
    return too_big(work, longest, holds_of, machine_of(pick_device(device_asked(work)), root), root)
