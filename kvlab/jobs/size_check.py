"""Whether a job fits this machine, by the one formula of `kvlab.planning`: the same for the command line and the queue.

Functions that load torch do so when they are called.
"""

from collections.abc import Callable, Iterable, Iterator

from kvlab.bench.request import BenchJob, parts_of
from kvlab.core import FULL, MethodChoice, UserError
from kvlab.evaluation.request import EvalJob, EvalRequest, SampleJob, full_first
from kvlab.jobs.batch import repeat_request
from kvlab.jobs.work import Work
from kvlab.models.fitting.request import FitJob
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.info.names import context_length
from kvlab.models.info.size import find_model
from kvlab.models.info.token_count import count_tokens
from kvlab.planning.choices import TaskEntry, TaskList
from kvlab.planning.plan import FootprintOf, Held, Machine, Plan, make_plan
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, LOADING, CompareRequest, ImportRequest, RestoreRequest
from kvlab.requests.live_session import LiveJob, comparison_of

MOST_LINES = 1000  # read of a file to find its longest prompt
ANSWER_TOKENS = 64  # of an answer; the tasks' own are shorter
FootprintsOf = Callable[[Iterable[MethodChoice]], FootprintOf]


def plan_of(request: CompareRequest, tokens: int | None = None, machine: Machine | None = None) -> Plan:
    """The plan of a comparison; the tokens of its (longest) prompt are counted unless given.

    Raises UserError for an unknown method, a missing device, or a model whose configuration is not on this machine.
    """
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.models.load import pick_device

    model = find_model(request.model)
    tokens = tokens_of(request)[0] if tokens is None else tokens
    return make_plan(request, tokens, model, footprint_of, machine or machine_of(pick_device(request.device)))


def tokens_of(request: CompareRequest) -> tuple[int, bool]:
    """Tokens of a request's (longest) prompt, and whether they were counted rather than estimated."""
    comparison = longest(request)
    return count_tokens(comparison.prompt, ChatFormat.from_request(comparison))


def longest(request: CompareRequest) -> CompareRequest:
    """The comparison of the longest of several prompts; the first repeat, as repeats are equally long."""
    if not request.is_batch:
        return request
    lengths = [len(prompt.prompt) for prompt in request.prompts] or [0]
    return repeat_request(request, "-", 1 + lengths.index(max(lengths)))


def too_big(work: Work) -> str:
    """The plan's verdict on a job that is too big for this machine; empty if it fits or that is unknown."""
    from kvlab.engine.out_of_memory import footprint_of, machine_of
    from kvlab.models.load import pick_device

    listed = TaskList(tasks=(), formats=())
    if isinstance(work, RestoreRequest):
        return ""  # it repeats a run that fitted
    if isinstance(work, BenchJob) and work.preset:
        from kvlab.bench.request import preset_requests

        work = BenchJob(name=work.name, requests=preset_requests(work.preset, **work.changes))
    if isinstance(work, EvalJob | SampleJob):
        from kvlab.tasks.registry import TASKS

        tasks = (TaskEntry(name=name, lengths=task.lengths, uses_depth=task.uses_depth) for name, task in TASKS.items())
        listed = TaskList(tasks=tuple(tasks), formats=())
    try:
        return refusal(work, machine_of(pick_device(requested_device(work))), lambda _: footprint_of, listed)
    except UserError:
        return ""  # loading the model reports the error, or downloads what is missing


def refusal(work: Work, machine: Machine, footprints: FootprintsOf, listed: TaskList) -> str:
    """Why the job is too big for the machine, in one sentence; empty if it fits or its placement is unknown.

    `footprints` returns what the caches of choices hold; `listed` are the tasks. Raises UserError for an unknown model.
    """
    for request, tokens, rows, held, scale in comparisons_of(work, machine, listed):
        model = find_model(request.model, scale)
        plan = make_plan(request, tokens, model, footprints(request.choices), machine, rows, held)
        if plan.refusal:
            return plan.refusal
    return ""


def comparisons_of(
    work: Work, machine: Machine, listed: TaskList
) -> Iterator[tuple[CompareRequest, int, int, Held, int]]:
    """What a job reads at once: (comparison, tokens of its prompt, prompts, caches that are held, scale of the shape).

    A live session over prefixes reads nothing, and how long a recording is shows when it is read.
    """
    on_gpu = machine.device == "cuda"  # there, what runs out of memory is halved or becomes a row that says so
    if isinstance(work, LiveJob) and not work.request.prefixes:
        work = comparison_of(work.request, "", work.max_new_tokens)
    if isinstance(work, CompareRequest):
        yield work, tokens_of(work)[0], 1, "all", 1
    elif isinstance(work, EvalJob | SampleJob):
        few = work.request.model_copy(update={"samples": min(work.request.samples, MOST_LINES)})
        tokens = max([1, *prompt_lengths(few, listed)])
        chunk = work.request.prefill_chunk
        rows = 1 if on_gpu or isinstance(work, SampleJob) else work.request.batch_rows or 1
        chosen = work.request.all_choices
        yield _comparison(work.request, chosen, ANSWER_TOKENS, prefill_chunk=chunk), tokens, rows, "largest", 1
    elif isinstance(work, FitJob):
        yield _comparison(work.request, (FULL,), 1), work.request.length, 1, "largest", 1
    elif isinstance(work, BenchJob):
        for part in parts_of(work.requests):  # a preset's are known only where methods are
            new_tokens = part.shortened(part.new_tokens) or part.repeats * part.timed_steps + part.warm_steps
            chosen = full_first(part.choices_run())
            tokens = part.shortened(part.contexts[0])
            held: Held = "smallest" if on_gpu else "largest"
            yield _comparison(part, chosen, new_tokens), tokens, part.batches[0], held, part.scale


def _comparison(request: object, chosen: tuple[MethodChoice, ...], new_tokens: int, **more: object) -> CompareRequest:
    placed = {name: getattr(request, name) for name in ("model", *LOADING)}
    return CompareRequest(prompt="-", choices=chosen, max_new_tokens=new_tokens, level="off", **placed, **more)


def requested_device(work: Work) -> str:
    """The device that the job names, such as `auto`; of several the first."""
    if isinstance(work, BenchJob):
        return str(work.requests[0].device if work.requests else work.changes.get("device", "auto"))
    return work.device if isinstance(work, CompareRequest | RestoreRequest | ImportRequest) else work.request.device


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
        try:
            if file.path.is_dir():  # a text per prompt
                sizes = [text.stat().st_size // 4 for text in sorted(file.path.iterdir()) if text.is_file()]
            else:
                with file.path.open("rb") as lines:
                    head = lines.read(LARGEST_PROMPT_BYTES)
                sizes = [len(line) // 4 for line in head.split(b"\n") if line.strip()]
        except OSError:
            continue
        lengths += [min(size, most) if most else size for size in sizes[: request.samples]]
    return lengths
