"""Jobs for the queue from the measurements that exhibits of the atlas need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvlab.bench.request import BenchJob
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec
from kvlab.evaluate.request import EvalJob, EvalRequest, TaskChoice
from kvlab.forms import compare_form
from kvlab.jobs.work import Work
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.info.names import check_model
from kvlab.planning.methods import methods
from kvlab.planning.tasks import task_list
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import Benchmark, Evaluation, ExhibitFill, Measurement, RecordedComparison, command_line
from kvlab.tasks.shipped_samples import excerpts, shipped_sample

ALL_TASKS = "all"


def job_of(measurement: Measurement) -> Work:
    """The job that does what the measurement's command does. Raises UserError if the measurement needs a terminal."""
    match measurement:
        case RecordedComparison():
            return _compare(measurement)
        case Evaluation():
            return _evaluate(measurement)
        case Benchmark(preset=preset, changes=changes):
            return BenchJob(name=preset, preset=preset, changes=changes, title=f"Benchmark {preset}")
        case ExhibitFill():
            raise UserError(f"Run this in a terminal: {command_line(measurement)}")


def _compare(measurement: RecordedComparison) -> CompareRequest:
    sample = shipped_sample(measurement.sample)
    request = compare_form.make_request(
        sample.text,
        check_model(measurement.model),
        _choices(measurement),
        max_new_tokens=sample.max_new_tokens,
        title=sample.title,
        answer=sample.answer,
        facts=sample.facts,
        level=measurement.level,
    )
    compare_form.check_fits(request.prompt, ChatFormat.of(request), request.max_new_tokens)
    return request


def _evaluate(measurement: Evaluation) -> EvalJob:
    if measurement.data:
        raise UserError("This needs files of your own: run the command in a terminal.")
    tasks = [task.name for task in task_list().tasks] if measurement.tasks == (ALL_TASKS,) else measurement.tasks
    request = EvalRequest(
        model=check_model(measurement.model),
        tasks=tuple(TaskChoice(task=task) for task in tasks),
        choices=_choices(measurement),
        samples=measurement.samples,
        question_aware=measurement.question_aware is not False,
        lengths=measurement.lengths or None,
        depths=measurement.depths or None,
    )
    name = measurement.out.name
    return EvalJob(name=name, request=request, title=f"Evaluation {name}")


def _choices(measurement: RecordedComparison | Evaluation) -> tuple[MethodChoice, ...]:
    registered = {entry.name: entry for entry in methods()}
    choices: list[MethodChoice] = []
    for name, values in map(parse_spec, measurement.methods):
        if name not in registered:
            raise UserError(f"There is no method {name!r} here: run the command in a terminal to see why.")
        choices += compare_form.choices([registered[name]], measurement.budgets, {name: values})
    return tuple(choices)


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

    Raises UserError if a measurement needs a terminal.
    """
    works = [job_of(measurement) for measurement in dict.fromkeys(measurements)]
    evaluations = [small_evaluation(work, size) for work in works if isinstance(work, EvalJob)]
    benches = [work for work in works if isinstance(work, BenchJob)]
    return [*comparisons(works, size), *sorted(evaluations, key=_option_count), *benches]


def _option_count(work: EvalJob) -> int:
    """The most options a method of it has: a method without options is measured under its own name first."""
    return max(len(set(choice.hyper_parameters) - {"preset"}) for choice in work.request.choices)
