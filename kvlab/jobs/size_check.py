"""Plan requests before they run, and check that they fit this machine.

An evaluation, a benchmark or a fit is planned by its worst case as a comparison: a batch takes the memory of one prompt
times its rows, except for the weights and the process. Functions that load torch do so when they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvlab.bench.request import BenchJob, BenchRequest, parts_of
from kvlab.catalogue.tasks import TaskEntry, TaskList
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob, EvalRequest, SampleJob, full_first
from kvlab.fitting.request import FitJob
from kvlab.jobs.batch import repeat_request
from kvlab.jobs.work import Work
from kvlab.model_info.chat_template import ChatFormat
from kvlab.model_info.names import context_length
from kvlab.model_info.size import find_model
from kvlab.model_info.token_count import count_tokens
from kvlab.planning.machine import Machine
from kvlab.planning.memory import DECODING, LOADING, STANDING
from kvlab.planning.parts import Phase
from kvlab.planning.plan import FootprintOf, Manner, Plan, can_plan, make_plan
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, CompareRequest, RecordLevel, RescueRequest
from kvlab.requests.compare import LOADING as LOADING_FIELDS
from kvlab.requests.live_session import LiveJob, comparison_of

ANSWER_TOKENS = 64  # of an answer; the tasks' own are shorter
READER = MethodChoice(method="kvzip", budget=0.5)  # the method that fits read a window of text with
ONCE = (*STANDING, "CUDA itself")  # parts that do not grow with the batch
SEEKS_THE_LIMIT = "batch"  # a benchmark mode that is not judged
WITHOUT_PROMPT = ("decode", "compress", "memory")  # modes that fill caches with synthetic states by default
BulkJob = EvalJob | SampleJob | BenchJob | FitJob


def plan_of(
    request: CompareRequest,
    root: Path,
    tokens: int | None = None,
    machine: Machine | None = None,
) -> Plan:
    """The plan of a request; the tokens of its (longest) prompt are counted unless given.

    Raises UserError for an unknown method, a missing device, or a model whose configuration is not on this machine.
    """
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.models.load import pick_device

    model = find_model(request.model)
    if tokens is None:
        tokens, _ = tokens_of(request)
    machine = machine or machine_of(pick_device(request.device), root)
    return make_plan(request, tokens, model, footprint_of, machine)


def tokens_of(request: CompareRequest) -> tuple[int, bool]:
    """Tokens of a request's (longest) prompt, and whether they were counted rather than estimated."""
    comparison = longest(request)
    return count_tokens(comparison.prompt, ChatFormat.of(comparison))


def longest(request: CompareRequest) -> CompareRequest:
    """The comparison of the longest of several prompts; the first repeat, as repeats are equally long."""
    if not request.is_batch:
        return request
    lengths = [len(prompt.prompt) for prompt in request.prompts] or [0]
    return repeat_request(request, "-", 1 + lengths.index(max(lengths)))


def too_big(request: Work, root: Path) -> str:
    """The plan's verdict on a job that is too big for this machine; empty if it fits.

    Jobs are not judged if the model is unknown here, the device is missing, or accelerate may offload weights to the
    host.
    """
    if isinstance(request, RescueRequest):
        return ""  # it repeats a run that fitted
    if isinstance(request, LiveJob) and request.request.prefixes:
        return ""  # nothing is read, which is what a plan is about
    if isinstance(request, LiveJob):
        request = comparison_of(request.request, "", request.max_new_tokens)
    try:
        if not isinstance(request, CompareRequest):
            return _too_big(request, root)
        plan = plan_of(request, root)
    except UserError:
        return ""  # loading the model reports the error, or downloads what is missing
    return plan.verdict if not plan.fits and can_plan(request, plan.machine) else ""


def _too_big(work: BulkJob, root: Path) -> str:
    from kvlab.bench.presets import preset_requests
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.models.load import pick_device
    from kvlab.tasks.registry import TASKS

    longest = 0
    if isinstance(work, BenchJob) and work.preset:
        work = BenchJob(name=work.name, requests=preset_requests(work.preset, **work.changes))
    if isinstance(work, EvalJob | SampleJob):
        tasks = (TaskEntry(name=name, lengths=task.lengths, uses_depth=task.uses_depth) for name, task in TASKS.items())
        longest = longest_prompt(work.request, TaskList(tasks=tuple(tasks), formats=()))
    return bulk_too_big(work, longest, footprint_of, machine_of(pick_device(requested_device(work)), root))


@dataclass(frozen=True)
class WorstCase:
    """Methods that take as much memory as `rows` prompts of `tokens` tokens together.

    `manner`: whether the methods share passes. `filled` caches have read no prompt. If `others_go_on`, a method that
    runs out of memory does not end the job.
    """

    request: CompareRequest
    tokens: int
    rows: int = 1
    scale: int = 1
    manner: Manner = "apart"
    filled: bool = False
    others_go_on: bool = False


def bulk_too_big(work: BulkJob, longest: int, holds: FootprintOf, machine: Machine) -> str:
    """Why the job is too big for this machine, in one sentence; empty if it fits or that is unknown.

    `longest` is the length of an evaluation's longest prompt in tokens. Raises UserError for an unknown model.
    """
    for case in worst_cases(work, longest, machine.device):
        model = find_model(case.request.model, case.scale)
        plan = make_plan(case.request, case.tokens, model, holds, machine, manner=case.manner)
        if not can_plan(case.request, machine):
            continue
        parts = _of_rows(plan, case)
        lacking = [part for part in parts if part.lacking is not None]
        if lacking and (not case.others_go_on or len(lacking) == len(parts)):
            together = f"{case.rows:,} prompts" if case.rows > 1 else "one prompt"
            return (
                f"This needs about {lacking[0].lacking} ({together} of {case.tokens:,} tokens at once, phase "
                f"“{lacking[0].peak.name}”): take shorter or fewer prompts at once, a prefill chunk, a smaller model, "
                "or a larger device."
            )
    return ""


def worst_cases(work: BulkJob, longest: int, device: str) -> Iterator[WorstCase]:
    """Comparisons that stand for the job's largest memory use on a device of this kind."""
    if isinstance(work, EvalJob | SampleJob):
        # On a GPU a batch that does not fit is halved until one method's cache of one prompt is left.
        on_host, recorded = device == "cpu", isinstance(work, SampleJob)
        rows = work.request.batch_rows or 1 if on_host and not recorded else 1
        level: RecordLevel = "full" if recorded else "off"
        chosen = work.request.all_choices
        comparison = _comparison(work.request, chosen, ANSWER_TOKENS, level, prefill_chunk=work.request.prefill_chunk)
        manner: Manner = "comparison" if recorded else "together" if on_host else "apart"
        yield WorstCase(comparison, max(longest, 1), rows, manner=manner)
    elif isinstance(work, FitJob):
        chosen = (FULL,) if work.request.method == "less" else (READER,)
        yield WorstCase(_comparison(work.request, chosen), work.request.length)
    else:
        for part in parts_of(work.requests):  # a preset's are known only where methods are
            if part.mode != SEEKS_THE_LIMIT:
                yield _measured(part, device)


def _measured(part: BenchRequest, device: str) -> WorstCase:
    new_tokens = part.shortened(part.new_tokens) or part.repeats * part.timed_steps + part.warm_steps
    comparison = _comparison(
        part,
        full_first(part.choices_run()),
        new_tokens,
        prefill_chunk=part.prefill_chunk,
        compress_every=part.compress_every,
    )
    return WorstCase(
        comparison,
        part.shortened(part.contexts[0]),
        part.batches[0],
        part.scale,
        filled=part.mode in WITHOUT_PROMPT and part.fill == "synthetic",
        others_go_on=device != "cpu",
    )


def _comparison(
    request: object, chosen: tuple[MethodChoice, ...], new_tokens: int = 1, level: RecordLevel = "off", **more: object
) -> CompareRequest:
    placed = {name: getattr(request, name) for name in ("model", *LOADING_FIELDS)}
    return CompareRequest(prompt="-", choices=chosen, max_new_tokens=new_tokens, level=level, **placed, **more)


def _of_rows(plan: Plan, case: WorstCase) -> list[Plan]:
    """The plan for a batch of prompts; one for each method if they run one after another."""
    phases = [_times(phase, case.rows) for phase in plan.phases]
    if case.filled:
        phases = [phase for phase in phases if phase.name == LOADING or phase.name.endswith(DECODING)]
    if case.manner != "apart":
        return [replace(plan, phases=tuple(phases))]
    loads = [phase for phase in phases if phase.name == LOADING]
    methods: dict[str, list[Phase]] = {}
    for phase in phases[len(loads) :]:
        methods.setdefault(phase.name.rpartition(", ")[0], []).append(phase)
    return [replace(plan, phases=(*loads, *own)) for own in methods.values()]


def _times(phase: Phase, rows: int) -> Phase:
    parts = (part if part.name in ONCE else replace(part, bytes=part.bytes * rows) for part in phase.parts)
    return Phase(phase.name, tuple(parts))


def requested_device(work: BulkJob) -> str:
    """The device that the job names, such as `auto`; of several the first."""
    if not isinstance(work, BenchJob):
        return str(work.request.device)
    return str(work.requests[0].device if work.requests else work.changes.get("device", "auto"))


MOST_LINES = 1000  # read of a file to find its longest prompt


def longest_prompt(request: EvalRequest, listed: TaskList) -> int:
    """Tokens of the longest prompt; 0 if unknown."""
    few = request.model_copy(update={"samples": min(request.samples, MOST_LINES)})
    return max(prompt_lengths(few, listed), default=0)


def prompt_lengths(request: EvalRequest, listed: TaskList) -> list[int]:
    """Tokens of every prompt; for files estimated from their bytes."""
    tasks = {task.name: task for task in listed.tasks}
    window = context_length(request.model)
    lengths: list[int] = []
    for choice in request.tasks:
        task = tasks.get(choice.task)
        default_lengths = task.lengths if task is not None else ()
        fitting = tuple(min(length, window - window // 8) for length in default_lengths) if window else default_lengths
        places = len(request.depths or (None,)) if task is not None and task.uses_depth else 1
        lengths += [length for length in request.lengths or fitting for _ in range(places * request.samples)]
    most = min((length for length in (window, request.max_prompt) if length), default=None)
    for file in request.files:
        lengths += _file_lengths(file.path, request.samples, most)
    return lengths


def _file_lengths(path: Path, samples: int, most: int | None) -> list[int]:
    try:
        if path.is_dir():  # a text per prompt
            sizes = [file.stat().st_size // 4 for file in sorted(path.iterdir()) if file.is_file()]
        else:
            with path.open("rb") as file:
                head = file.read(LARGEST_PROMPT_BYTES)
            sizes = [len(line) // 4 for line in head.split(b"\n") if line.strip()]
    except OSError:
        return []
    sizes = sizes[:samples]
    return [min(size, most) if most else size for size in sizes]
