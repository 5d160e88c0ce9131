"""Jobs for the queue from the measurements that exhibits of the atlas need."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.bench.request import BenchJob
from kvlab.common.formatting import model_title
from kvlab.common.lab import lab
from kvlab.core import MethodChoice, UserError, in_one_sentence, parse_spec
from kvlab.evaluation.request import EvalJob, EvalRequest, TaskChoice
from kvlab.forms import compare_form
from kvlab.jobs.work import Work
from kvlab.models.fitting.request import SETTING, FitJob, FitRequest, Fittable, fitted_file
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.info.names import EMBEDDED, check_model
from kvlab.planning.choices import methods, task_list
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import Benchmark, Evaluation, ExhibitFill, Measurement, RecordedComparison, command_line
from kvlab.tasks.shipped_samples import excerpts, shipped_sample
from kvlab.trace.user_labels import may_view

LEARNS: Mapping[str, Fittable] = {
    "kvzap": "kvzap", "kvzap-threshold": "kvzap", "fast-kvzip": "fast-kvzip", "less": "less", "lukv": "lukv",
    "duoattention": "duoattention", "headkv": "duoattention", "triattention": "triattention", "qfilter": "qfilter",
}  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A file made by a fit, and its name in a request: never its path on a server with a lab file."""

    name: str
    file: Path
    asked: str


def fitted_files(root: Path, model: str, method: Fittable) -> list[Fitted]:
    """Files fitted to the model for the method that the acting user may see, newest first."""
    files = []
    for request_file in (root / "fit").glob("*/request.json"):
        file = fitted_file(root, request_file.parent.name)
        try:
            request = FitRequest.model_validate_json(request_file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            continue
        matches = (request.model, request.method) == (model.strip(), method)
        if matches and file.exists() and may_view(root, request_file.parent.name, "fit"):
            name = request_file.parent.name
            files.append(Fitted(name, file.absolute(), f"fit:{name}" if lab() is not None else str(file.absolute())))
    return sorted(files, key=lambda fit: fit.file.stat().st_mtime, reverse=True)


def ships(model: str) -> bool:
    """Whether the model's fitted files ship with kvlab."""
    return model.strip() == EMBEDDED


def make_fit(
    model: str, method: Fittable, options: Mapping[str, Any], moment: datetime | None = None, private: bool = False
) -> FitJob:
    """The job under a new name; `options` are further fields of `FitRequest`, or the form's values for them.

    Raises UserError if there is no such model, or an option is out of range.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(check_model(model)).name).strip(".-") or "model"
    try:
        request = FitRequest(model=model.strip(), method=method, **compare_form.request_fields(options))
        name = f"{method}-{stem[:60]}-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"
        return FitJob(name=name, request=request, title=f"Fit {method} to {model_title(model)}", private=private)
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def setting(method: str) -> str:
    """The hyper-parameter of a method that takes the file."""
    return SETTING[LEARNS[method]]


ALL_TASKS = "all"


def job_of(measurement: Measurement) -> Work:
    """The job that does what the measurement's command does. Raises UserError if the measurement needs a terminal."""
    match measurement:
        case RecordedComparison():
            sample = shipped_sample(measurement.sample)
            comparison = compare_form.make_request(
                sample.text,
                check_model(measurement.model),
                _choices(measurement),
                max_new_tokens=sample.max_new_tokens,
                title=sample.title,
                answer=sample.answer,
                facts=sample.facts,
                level=measurement.level,
            )
            how = ChatFormat.from_request(comparison)
            compare_form.check_fits(comparison.prompt, how, comparison.max_new_tokens)
            return comparison
        case Evaluation():
            if measurement.data:
                raise UserError("This needs files of your own: run the command in a terminal.")
            tasks = (
                [task.name for task in task_list().tasks] if measurement.tasks == (ALL_TASKS,) else measurement.tasks
            )
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
        case Benchmark(preset=preset, changes=changes):
            return BenchJob(name=preset, preset=preset, changes=changes, title=f"Benchmark {preset}")
        case ExhibitFill():
            raise UserError(f"Run this in a terminal: {command_line(measurement)}")


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


def fill_jobs(measurements: Sequence[Measurement], size: FillSize) -> list[Work]:
    """All jobs for the measurements: comparisons first, then evaluations (plain methods first), then benchmarks.

    Evaluations get few prompts and short lengths, as many lengths and depths as they had; one that asks for a multiple
    of the usual number of prompts gets the same multiple.

    Raises UserError if a measurement needs a terminal.
    """
    works = [job_of(measurement) for measurement in dict.fromkeys(measurements)]
    evaluations: list[EvalJob] = []
    for work in works:
        if not isinstance(work, EvalJob):
            continue
        request = work.request
        lengths = size.over_depths if request.depths else size.over_lengths if request.lengths else size.lengths
        depths = request.depths[:: max(1, len(request.depths) // 2)] if request.depths else None
        samples = min(3, size.samples) if request.depths else max(1, request.samples // USUAL) * size.samples
        request = request.model_copy(update={"samples": samples, "lengths": lengths, "depths": depths})
        evaluations.append(work.model_copy(update={"name": FOLDER, "request": request}))
    # A method without options is measured under its own name first.
    evaluations.sort(key=lambda work: max(len({*one.hyper_parameters} - {"preset"}) for one in work.request.choices))
    # One comparison per text with every method of any of the comparisons.
    compared = [work for work in works if isinstance(work, CompareRequest)]
    comparisons: list[CompareRequest] = []
    if compared:
        choices = {choice.model_dump_json(): choice for work in compared for choice in work.choices}
        fields = {"choices": tuple(choices.values()), "max_new_tokens": NEW_TOKENS, "level": "full"}
        plain = compared[0].model_copy(update={"answer": None, "other_answers": (), "facts": (), **fields})
        texts = excerpts(size.prompts)
        comparisons = [plain.model_copy(update={"prompt": text, "title": title}) for title, text in texts]
    return [*comparisons, *evaluations, *(work for work in works if isinstance(work, BenchJob))]
