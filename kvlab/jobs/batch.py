"""Run a batch: one comparison after another for a request with repeats or several prompts.

Comparisons that are complete already are skipped.
"""

import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import time_left
from kvlab.core.errors import UserError
from kvlab.requests.compare import CompareRequest, OnePrompt, Progress
from kvlab.requests.facts import find_facts
from kvlab.requests.repeats import Repeat
from kvlab.tasks.haystack import plant
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.schema import check_id

FOLDER = "batches"
Compare = Callable[..., list[Path]]
LONGEST_TITLE = 60
LEAST_ELAPSED = 2.0  # seconds; before that the time left is a guess
OF_PROMPT = ("prompt", "turns", "answer", "other_answers", "facts", "notes")


def run_batch(
    request: CompareRequest,
    root: Path,
    compare: Compare,
    *,
    comparison_id: str,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> list[Path]:
    """Run every incomplete repeat of `request` with `compare`; returns the folders of the new runs.

    The batch is `request.batch`, or a new one called `comparison_id`. A stop leaves finished repeats complete. Raises
    UserError as `compare`, with the number of the repeat; earlier repeats stay.
    """
    root = Path(root)
    batch = check_id(request.batch or comparison_id)
    prompts = [repeat_request(request, batch, number) for number in range(1, request.comparisons + 1)]
    # The batch's request next to its runs, so that it can be resumed.
    replace_text(root / FOLDER / f"{batch}.json", request.model_copy(update={"batch": batch}).model_dump_json(indent=2))
    unfinished = missing_repeats(root, batch, request)
    missing = [(one, one.repeat) for one in prompts if one.repeat and one.repeat.number in unfinished]
    begun = time.monotonic()
    paths = []
    for ended, (comparison, repeat) in enumerate(missing):
        if cancelled is not None and cancelled():
            break
        try:
            # An unused comparison id.
            named = f"{repeat.batch}-{repeat.number:02d}"
            taken = {entry.comparison_id for entry in list_comparisons(root)}
            tries = (f"{named}-{attempt}" for attempt in range(2, len(taken) + 3))
            paths += compare(
                comparison,
                root,
                comparison_id=(named if named not in taken else next(name for name in tries if name not in taken)),
                progress=progress and partial(_report_part, progress, repeat, ended, len(missing), begun),
                cancelled=cancelled,
            )
        except UserError as error:
            what = "Repeat" if repeat.planting else "Prompt"
            raise UserError(f"{what} {repeat.number} of {repeat.of}: {error}") from error
    return paths


def repeat_request(request: CompareRequest, batch: str, number: int) -> CompareRequest:
    """The comparison number `number` (from 1) of the request: its needle planted, or its own prompt.

    Raises UserError as `kvlab.tasks.haystack.plant`.
    """
    if request.prompts:
        planting = None
        prompt = request.prompts[number - 1]
        prompt = prompt if prompt.name else prompt.model_copy(update={"name": f"prompt {number}"})
    else:
        planting = request.repeats[number - 1]
        planted = plant(request.prompt, planting.depth, planting.draw, planting.wording)
        facts = find_facts(planted.prompt, [planted.fact])
        prompt = OnePrompt(prompt=planted.prompt, answer=planted.answer, facts=facts, notes=request.notes)
    count = request.comparisons
    repeat = Repeat(batch=batch, number=number, of=count, planting=planting, name=prompt.name)
    named = request.title or prompt.name or textwrap.shorten(request.prompt[:400], LONGEST_TITLE, placeholder=" …")
    changed = {name: getattr(prompt, name) for name in OF_PROMPT}
    changed |= {"title": f"{number} of {count}: {named}", "repeats": (), "prompts": (), "batch": None, "repeat": repeat}
    return request.model_copy(update=changed)


def load_batch(root: Path, batch: str) -> CompareRequest:
    """The request that resumes a batch. Raises UserError if there is no such batch here, or its file is damaged."""
    file = Path(root) / FOLDER / f"{check_id(batch)}.json"
    try:
        return CompareRequest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no batch {batch!r} in {root}: name one from {Path(root) / FOLDER}.") from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{file} is damaged: start the batch again.") from error


def missing_repeats(root: Path, batch: str, request: CompareRequest) -> list[int]:
    """Numbers of the comparisons of a batch that are not complete."""
    complete = {
        entry.number
        for entry in list_comparisons(root)
        if entry.batch == batch and len(entry.runs) == len(request.runs) and entry.status == "complete"
    }
    return [number for number in range(1, request.comparisons + 1) if number not in complete]


def _report_part(
    report: Callable[[Progress], None], repeat: Repeat, ended: int, missing: int, begun: float, part: Progress
) -> None:
    """Report a part of `repeat` as one of the batch: `ended` of its `missing` comparisons have run since `begun`."""
    share = (ended + part.done / max(part.total, 1)) / missing
    elapsed = time.monotonic() - begun
    left = time_left(elapsed, share) if elapsed >= LEAST_ELAPSED else ""
    before = repeat.of - missing + ended
    stage = f"{before + 1} of {repeat.of}{', ' + left if left else ''}: {part.stage}"
    done = before * part.total + part.done
    report(Progress(stage=stage, done=done, total=repeat.of * part.total, run_id=part.run_id, live=part.live))
