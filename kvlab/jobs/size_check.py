"""Whether an evaluation, a benchmark or a fit fits this machine: its worst moment, planned as a comparison's.

A batch holds what one prompt holds as many times, but for the weights and the process. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvlab.bench.request import BenchJob, BenchRequest, parts_of
from kvlab.catalogue.tasks import TaskList
from kvlab.evaluate.request import EvalJob, EvalRequest, SampleJob, full_first
from kvlab.fitting.request import FitJob
from kvlab.model_info.names import context_length
from kvlab.model_info.size import find_model
from kvlab.planning.machine import Machine
from kvlab.planning.memory import STANDING
from kvlab.planning.parts import Phase
from kvlab.planning.plan import HoldsOf, Plan, can_plan, make_plan
from kvlab.requests.compare import FULL, LARGEST_PROMPT_BYTES, LOADING, CompareRequest, MethodChoice, RecordLevel

ANSWER_TOKENS = 64  # of an answer; the tasks' own are shorter
READER = MethodChoice(method="kvzip", budget=0.5)  # what fits read a window of text by
ONCE = (*STANDING, "CUDA itself")  # parts that a batch has but once
LOADS, DECODES = "loading the weights", "decoding"
SEEKS_THE_LIMIT = "batch"  # the mode of benchmarks that is not judged
WITHOUT_PROMPT = ("decode", "compress", "memory")  # that fill their caches with made-up states, unless told otherwise
Several = EvalJob | SampleJob | BenchJob | FitJob


@dataclass(frozen=True)
class StandIn:
    """A comparison that holds what `rows` prompts of `tokens` tokens hold together.

    `filled` caches have seen no prompt. Where `others_go_on`, a method that runs out of memory leaves the rest alone.
    """

    request: CompareRequest
    tokens: int
    rows: int = 1
    scale: int = 1
    filled: bool = False
    others_go_on: bool = False


def too_big(work: Several, longest: int, holds: HoldsOf, machine: Machine, root: Path) -> str:
    """Why the work is too big for this machine, in a sentence; empty where it fits, or nobody can say.

    `longest` are the tokens of an evaluation's longest prompt. Raises UserError for a model that is not known here.
    """
    for stand_in in stand_ins(work, longest, machine.device):
        model = find_model(stand_in.request.model, stand_in.scale)
        plan = make_plan(stand_in.request, stand_in.tokens, model, holds, machine, root, timed=False)
        if not can_plan(stand_in.request, machine):
            continue
        parts = _of_rows(plan, stand_in)
        lacking = [part for part in parts if part.lacking is not None]
        if lacking and (not stand_in.others_go_on or len(lacking) == len(parts)):
            together = f"{stand_in.rows:,} prompts" if stand_in.rows > 1 else "one prompt"
            return (
                f"This needs about {lacking[0].lacking} ({together} of {stand_in.tokens:,} tokens at once, phase "
                f"“{lacking[0].peak.name}”): take shorter or fewer prompts at once, a prefill chunk, a smaller model, "
                "or a larger device."
            )
    return ""


def stand_ins(work: Several, longest: int, device: str) -> Iterator[StandIn]:
    """What stands for the work's worst moments on a device of this kind."""
    if isinstance(work, EvalJob | SampleJob):
        # On a GPU a batch that does not fit is halved until one prompt is left.
        rows = work.request.batch_rows or 1 if device == "cpu" and isinstance(work, EvalJob) else 1
        level: RecordLevel = "full" if isinstance(work, SampleJob) else "off"
        chosen = work.request.all_choices
        asked = _comparison(work.request, chosen, ANSWER_TOKENS, level, prefill_chunk=work.request.prefill_chunk)
        yield StandIn(asked, max(longest, 1), rows)
    elif isinstance(work, FitJob):
        chosen = (FULL,) if work.request.method == "less" else (READER,)
        yield StandIn(_comparison(work.request, chosen), work.request.length)
    else:
        for part in parts_of(work.requests):  # those of a preset are its experiment's, and known where methods are
            if part.mode != SEEKS_THE_LIMIT:
                yield _measured(part, device)


def _measured(part: BenchRequest, device: str) -> StandIn:
    new_tokens = part.shortened(part.new_tokens) or part.repeats * part.timed_steps + part.warm_steps
    asked = _comparison(
        part,
        full_first(part.choices_run()),
        new_tokens,
        prefill_chunk=part.prefill_chunk,
        compress_every=part.compress_every,
    )
    return StandIn(
        asked,
        part.shortened(part.contexts[0]),
        part.batches[0],
        part.scale,
        filled=part.mode in WITHOUT_PROMPT and part.fill == "synthetic",
        others_go_on=device != "cpu",
    )


def _comparison(
    asked: object, chosen: tuple[MethodChoice, ...], new_tokens: int = 1, level: RecordLevel = "off", **more: object
) -> CompareRequest:
    placed = {name: getattr(asked, name) for name in ("model", *LOADING)}
    return CompareRequest(prompt="-", choices=chosen, max_new_tokens=new_tokens, level=level, **placed, **more)


def _of_rows(plan: Plan, stand_in: StandIn) -> list[Plan]:
    """A plan for each method with what all share, of so many prompts at once."""
    phases = [_times(phase, stand_in.rows) for phase in plan.phases]
    if stand_in.filled:
        phases = [phase for phase in phases if phase.name == LOADS or phase.name.endswith(DECODES)]
    loads = [phase for phase in phases if phase.name == LOADS]
    stages = dict.fromkeys(phase.name.rpartition(":")[0] for phase in phases if phase.name != LOADS)
    return [
        replace(plan, phases=(*loads, *(phase for phase in phases if phase.name.rpartition(":")[0] == stage)))
        for stage in stages
    ]


def _times(phase: Phase, rows: int) -> Phase:
    parts = (part if part.name in ONCE else replace(part, bytes=part.bytes * rows) for part in phase.parts)
    return Phase(phase.name, tuple(parts))


def device_asked(work: Several) -> str:
    """The device that the work names, `auto` or another; of several the first."""
    if not isinstance(work, BenchJob):
        return str(work.request.device)
    return str(work.requests[0].device if work.requests else work.changes.get("device", "auto"))


MOST_LOOKED_AT = 1000  # lines of a file, for its longest


def longest_prompt(request: EvalRequest, listed: TaskList) -> int:
    """Tokens of the longest prompt as asked for; 0 where nobody can say."""
    few = request.model_copy(update={"samples": min(request.samples, MOST_LOOKED_AT)})
    return max(prompt_lengths(few, listed), default=0)


def prompt_lengths(request: EvalRequest, listed: TaskList) -> list[int]:
    """Tokens of every prompt as asked for; of files as their bytes let one expect."""
    known = {task.name: task for task in listed.tasks}
    window = context_length(request.model)
    found: list[int] = []
    for choice in request.tasks:
        task = known.get(choice.task)
        own = task.lengths if task is not None else ()
        fitting = tuple(min(length, window - window // 8) for length in own) if window else own
        places = len(request.depths or (None,)) if task is not None and task.uses_depth else 1
        found += [length for length in request.lengths or fitting for _ in range(places * request.samples)]
    most = min((length for length in (window, request.max_prompt) if length), default=None)
    for file in request.files:
        found += _file_lengths(file.path, request.samples, most)
    return found


def _file_lengths(path: Path, samples: int, most: int | None) -> list[int]:
    try:
        with path.open("rb") as file:
            head = file.read(LARGEST_PROMPT_BYTES)
    except OSError:
        return []
    sizes = [len(line) // 4 for line in head.split(b"\n") if line.strip()][:samples]
    return [min(size, most) if most else size for size in sizes]
