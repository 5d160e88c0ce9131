"""Jobs that fill the atlas, for the queue or for `kvlab atlas fill`, from the measurements its exhibits need.

Comparisons of several exhibits become one per text, over several texts, so that claims can be judged; evaluations share
a folder, so that what two exhibits need is measured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvlab.bench.request import BenchJob
from kvlab.evaluate.request import EvalJob
from kvlab.forms.measurement_job import job_of
from kvlab.jobs.work import Work
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import Measurement
from kvlab.tasks.shipped_samples import excerpts

FOLDER = "atlas"  # of the evaluations, in the runs' `eval`
NEW_TOKENS = 32
USUAL = 20  # prompts per task that an exhibit asks for


@dataclass(frozen=True)
class FillSize:
    """How much is measured: recorded texts, prompts per task, and their lengths in tokens.

    `over_lengths` and `over_depths` are the lengths of evaluations over these; the latter have 3 prompts per cell.
    """

    prompts: int = 8
    samples: int = 5
    lengths: tuple[int, ...] = (384,)
    over_lengths: tuple[int, ...] = (384, 512, 1024)
    over_depths: tuple[int, ...] = (256, 512, 768)


def small_evaluation(work: EvalJob, size: FillSize) -> EvalJob:
    """The evaluation with few prompts and short lengths, as many lengths and depths as it had.

    One that asks for a multiple of the usual number of prompts gets the same multiple.
    """
    request = work.request
    lengths = size.over_depths if request.depths else size.over_lengths if request.lengths else size.lengths
    depths = request.depths[:: max(1, len(request.depths) // 2)] if request.depths else None
    times = max(1, request.samples // USUAL)
    samples = min(3, size.samples) if request.depths else times * size.samples
    request = request.model_copy(update={"samples": samples, "lengths": lengths, "depths": depths})
    return work.model_copy(update={"name": FOLDER, "request": request})


def comparisons(works: Iterable[Work], size: FillSize) -> list[CompareRequest]:
    """One comparison per text with every method of any of the comparisons."""
    compared = [work for work in works if isinstance(work, CompareRequest)]
    if not compared:
        return []
    choices = {choice.model_dump_json(): choice for work in compared for choice in work.choices}
    fields = {"choices": tuple(choices.values()), "max_new_tokens": NEW_TOKENS, "level": "full"}
    plain = compared[0].model_copy(update={"answer": None, "other_answers": (), "facts": (), **fields})
    return [plain.model_copy(update={"prompt": text, "title": title}) for title, text in excerpts(size.prompts)]


def fill_jobs(measurements: Sequence[Measurement], size: FillSize) -> list[Work]:
    """All jobs for the measurements: comparisons first, then evaluations (plain methods first), then benchmarks.

    Raises:
        UserError: a measurement needs a terminal.
    """
    works = [job_of(measurement) for measurement in dict.fromkeys(measurements)]
    evaluations = [small_evaluation(work, size) for work in works if isinstance(work, EvalJob)]
    benches = [work for work in works if isinstance(work, BenchJob)]
    return [*comparisons(works, size), *sorted(evaluations, key=_option_count), *benches]


def _option_count(work: EvalJob) -> int:
    """The most options a method of it has: a method without options is measured under its own name first."""
    return max(len(set(choice.hyper_parameters) - {"preset"}) for choice in work.request.choices)
