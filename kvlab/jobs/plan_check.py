"""Plans of requests before they run, and which requests are too big for this machine. Loads torch when called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlab.jobs.size_check import Several
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
    """The plan of a request; the tokens of its prompt, of several the longest, are counted unless given.

    Raises UserError for an unknown method, a device that is not here, or a model whose configuration is not.
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
    """The tokens of a request's prompt, of several the longest, and whether they were counted or estimated."""
    from kvlab.model_info.chat_template import Manner
    from kvlab.model_info.token_count import count_tokens

    one = longest(request)
    return count_tokens(one.prompt, Manner.of(one))


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

    from kvlab.engine.environment import measure
    from kvlab.planning.seconds import keep_speed, known_speed

    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type != machine.device or not root.is_dir():
        return
    known = known_speed(machine, root)
    if known is None or not known.holds:
        keep_speed(machine, root, measure(torch.device(machine.device)))


def too_big(request: Work, root: Path) -> str:
    """The plan's verdict on work of any kind that is too big for this machine; empty where it fits.

    A model that nothing is known of here yet is not judged, nor a device that is not here, nor weights that accelerate
    may leave on the host.
    """
    from kvlab.common.errors import UserError
    from kvlab.planning.plan import can_plan
    from kvlab.requests.compare import CompareRequest, RescueRequest

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
    from kvlab.catalogue.tasks import TaskEntry, TaskList
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.evaluate.request import EvalJob, SampleJob
    from kvlab.jobs.size_check import device_asked, longest_prompt, too_big
    from kvlab.models.load import pick_device
    from kvlab.tasks.registry import TASKS

    longest = 0
    if isinstance(work, BenchJob) and work.preset:
        work = BenchJob(name=work.name, requests=preset_requests(work.preset, **work.changes))
    if isinstance(work, EvalJob | SampleJob):
        tasks = (TaskEntry(name=name, lengths=one.lengths, uses_depth=one.uses_depth) for name, one in TASKS.items())
        longest = longest_prompt(work.request, TaskList(tasks=tuple(tasks), formats=()))
    return too_big(work, longest, footprint_of, machine_of(pick_device(device_asked(work)), root), root)
