"""How long the prompts of an evaluation are, before any is made."""

from __future__ import annotations

from pathlib import Path

from kvlab.catalogue.tasks import TaskList
from kvlab.evaluate.request import EvalRequest
from kvlab.model_info.names import context_length
from kvlab.requests.compare import LARGEST_PROMPT_BYTES

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
