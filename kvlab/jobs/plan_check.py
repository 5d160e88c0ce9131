"""Plans of requests before they run, and which requests are too big for this machine. Loads torch when called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlab.jobs.size_check import BulkJob
    from kvlab.jobs.work import Work
    from kvlab.planning import Machine, Plan
    from kvlab.requests.compare import CompareRequest


def plan_of(
    request: CompareRequest,
    root: Path,
    tokens: int | None = None,
    machine: Machine | None = None,
    *,
    timed: bool = True,
) -> Plan:
    """The plan of a request; the tokens of its (longest) prompt are counted unless given.

    Raises UserError for an unknown method, a missing device, or a model whose configuration is not on this machine.
    """
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.models.load import pick_device
    from kvlab.planning import find_model, make_plan

    model = find_model(request.model)
    if tokens is None:
        tokens, _ = tokens_of(request)
    machine = machine or machine_of(pick_device(request.device), root)
    if timed:
        measure_once(machine, root)
    return make_plan(request, tokens, model, footprint_of, machine, root, timed=timed)


def tokens_of(request: CompareRequest) -> tuple[int, bool]:
    """Tokens of a request's (longest) prompt, and whether they were counted rather than estimated."""
    from kvlab.model_info.chat_template import ChatFormat
    from kvlab.model_info.token_count import count_tokens

    comparison = longest(request)
    return count_tokens(comparison.prompt, ChatFormat.of(comparison))


def longest(request: CompareRequest) -> CompareRequest:
    """The comparison of the longest of several prompts; the first repeat, as repeats are equally long."""
    from kvlab.jobs.batch import repeat_request

    if not request.is_batch:
        return request
    lengths = [len(prompt.prompt) for prompt in request.prompts] or [0]
    return repeat_request(request, "-", 1 + lengths.index(max(lengths)))


def measure_once(machine: Machine, root: Path) -> None:
    """Measure the speed of a GPU of this machine unless that was done recently."""
    import torch

    from kvlab.engine.environment import measure
    from kvlab.planning.seconds import keep_speed, known_speed

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != machine.device or not root.is_dir():
        return
    speed = known_speed(machine, root)
    if speed is None or not speed.holds:
        keep_speed(machine, root, measure(torch.device(machine.device)))


def too_big(request: Work, root: Path) -> str:
    """The plan's verdict on a job that is too big for this machine; empty if it fits.

    Jobs are not judged if the model is unknown here, the device is missing, or accelerate may offload weights to the
    host.
    """
    from kvlab.common.errors import UserError
    from kvlab.planning.plan import can_plan
    from kvlab.requests.compare import CompareRequest, RescueRequest

    if isinstance(request, RescueRequest):
        return ""  # it repeats a run that fitted
    try:
        if not isinstance(request, CompareRequest):
            return _too_big(request, root)
        plan = plan_of(request, root, timed=False)
    except UserError:
        return ""  # loading the model reports the error, or downloads what is missing
    return plan.verdict if not plan.fits and can_plan(request, plan.machine) else ""


def _too_big(work: BulkJob, root: Path) -> str:
    from kvlab.bench.presets import preset_requests
    from kvlab.bench.request import BenchJob
    from kvlab.catalogue.tasks import TaskEntry, TaskList
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.evaluate.request import EvalJob, SampleJob
    from kvlab.jobs.size_check import longest_prompt, requested_device, too_big
    from kvlab.models.load import pick_device
    from kvlab.tasks.registry import TASKS

    longest = 0
    if isinstance(work, BenchJob) and work.preset:
        work = BenchJob(name=work.name, requests=preset_requests(work.preset, **work.changes))
    if isinstance(work, EvalJob | SampleJob):
        tasks = (TaskEntry(name=name, lengths=task.lengths, uses_depth=task.uses_depth) for name, task in TASKS.items())
        longest = longest_prompt(work.request, TaskList(tasks=tuple(tasks), formats=()))
    return too_big(work, longest, footprint_of, machine_of(pick_device(requested_device(work)), root), root)
