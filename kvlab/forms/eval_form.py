"""From the form of the page Quality to an evaluation for the queue, and what that will take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import ValidationError

from kvlab.catalogue import parameters
from kvlab.catalogue.footprint import window_notes
from kvlab.catalogue.methods import MethodEntry, ask
from kvlab.catalogue.tasks import TaskList
from kvlab.common.errors import UserError
from kvlab.common.validation import in_one_sentence
from kvlab.evaluate.request import EvalJob, EvalRequest, FileChoice, SampleJob, TaskChoice, split_file
from kvlab.forms import compare_form, prompt_files
from kvlab.forms.plan_preview import plan_at_defaults
from kvlab.jobs.client import list_jobs, request_of
from kvlab.jobs.size_check import prompt_lengths
from kvlab.model_info.names import check_model
from kvlab.requests.compare import MethodChoice
from kvlab.server.settings import lab

HARNESS = "lm-eval:"  # begins the names of tasks whose prompts lm-eval makes
SPREAD = 1.6  # seconds seen on other prompts may be off by this factor, either way
ANSWER_TOKENS = 24
FEW = 4  # prompts of a cell that are tried
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Cost:
    """What an evaluation takes: measurements (a prompt under a method and budget), and seconds where they are known."""

    measurements: int
    prompts: int
    low: float | None = None
    high: float | None = None
    basis: str = ""


def new_name(moment: datetime | None = None) -> str:
    """A name for results that nobody named."""
    return f"browser-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"


def make_job(
    *,
    name: str,
    model: str,
    tasks: Mapping[str, Mapping[str, int]],
    files: str,
    uploaded: FileChoice | None,
    chosen: Sequence[MethodEntry],
    typed: Mapping[str, Mapping[str, Any]],
    budgets: str,
    lengths: str,
    depths: str,
    options: Mapping[str, Any],
    private: bool = False,
) -> EvalJob:
    """The job that the form asks for; `options` are further fields of `EvalRequest`, or words of the form for them.

    Raises:
        UserError: for the first thing that cannot be used.
    """
    found = [*read_files(files), *([uploaded] if uploaded else [])]
    if not tasks and not found:
        raise UserError("There is nothing to evaluate: choose a task, upload prompts, or name a file.")
    changed = {entry.name: parameters.changed(entry, typed.get(entry.name, {})) for entry in chosen}
    choices = compare_form.choices(chosen, compare_form.parse_budgets(budgets), changed)
    try:
        request = EvalRequest(
            model=check_model(model),
            tasks=tuple(TaskChoice(task=task, difficulty=dict(values)) for task, values in tasks.items()),
            files=tuple(found),
            choices=choices,
            lengths=numbers(lengths, "Lengths", int) or None,
            depths=numbers(depths, "Depths", float) or None,
            **compare_form.meant(options),
        )
        of = ", ".join([*tasks, *(file.path.name for file in found)])
        title = f"Evaluation {name.strip()}: {of}"
        return EvalJob(name=name.strip(), request=request, title=title, private=private)
    except ValidationError as error:
        if any("name" in one["loc"] for one in error.errors()):
            raise UserError(
                f"Results cannot be called {name[:60]!r}: give letters, digits, dots, dashes and underscores only."
            ) from None
        raise UserError(in_one_sentence(error)) from error


def problem_of(request: EvalRequest) -> str:
    """Why a prompt of the tasks cannot be made, such as a length that cannot hold them; empty where each can.

    A second process says it, once a request; tasks at their own lengths and difficulty are not asked about. Raises
    UserError where it gives no answer.
    """
    if not request.lengths and not any(choice.difficulty for choice in request.tasks):
        return ""
    asked = request.model_copy(update={"files": (), "choices": (), "samples": min(request.samples, FEW)})
    return _problem(asked.model_dump_json()) if asked.tasks else ""


@lru_cache(maxsize=64)
def _problem(request: str) -> str:
    return str(ask("tasks", "--fits", given=request)["problem"])


def window_notes_of(request: EvalRequest, listed: TaskList) -> list[str]:
    """A sentence for each method whose own window takes up its budget at a length that is asked for."""
    few = request.model_copy(update={"samples": 1})
    notes = (window_notes(request.choices, length) for length in sorted(set(prompt_lengths(few, listed))))
    return list(dict.fromkeys(note for some in notes for note in some))


def numbers(text: str, what: str, kind: type[Number]) -> tuple[Number, ...]:
    """The numbers of a list, each once; raises UserError where one is none, or is not above the least there can be."""
    words = text.replace(",", " ").replace(";", " ").split()
    try:
        found = tuple(dict.fromkeys(kind(word) for word in words))
    except (ValueError, OverflowError):
        raise UserError(f"{what} are numbers with commas between them, not {text[:60]!r}.") from None
    if kind is int and any(not 1 <= number < 2**31 for number in found):
        raise UserError(f"{what} are numbers of tokens of at least 1, not {text[:60]!r}.")
    if kind is float and any(not 0 <= number <= 1 for number in found):
        raise UserError(f"{what} are shares of the prompt from 0 to 1, not {text[:60]!r}.")
    return found


def read_files(text: str) -> list[FileChoice]:
    """The files that are named one a line as `format=path`; raises UserError for a line that names none."""
    return [_file(line.strip()) for line in text.splitlines() if line.strip()]


def _file(line: str) -> FileChoice:
    try:
        form, path, options = split_file(line)
    except ValueError:
        raise UserError(
            f"{line[:80]!r} names no file: write format=path, such as ruler=/data/niah/validation.jsonl."
        ) from None
    if lab() is not None:
        raise UserError("On this server prompts come by upload: upload the file instead of naming it.")
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"There is no file {str(file)[:200]!r} on this machine: give its whole path.")
    return FileChoice(form=form, path=file.absolute(), options=options)


def cost(job: EvalJob, listed: TaskList, rows: pd.DataFrame, root: Path) -> Cost:
    """Estimate the job from earlier rows of the same model, else from the plan of one prompt.

    Measurements that already exist are counted too.
    """
    request = job.request
    lengths = prompt_lengths(request, listed)
    prompts = len(lengths)
    count = prompts * len(request.all_choices)
    seen = rows[rows["model"] == request.model] if len(rows) else rows
    if len(seen):
        seconds = _seen_seconds(seen, request.all_choices, lengths)
        return Cost(
            count, prompts, seconds / SPREAD, seconds * SPREAD, f"from {len(seen):,} measurements of this model"
        )
    mean = round(sum(lengths) / prompts) if prompts else 0
    options = {"level": "off", "max_new_tokens": ANSWER_TOKENS}
    plan = plan_at_defaults(mean, request.model, request.choices, options, root)
    if plan is None or plan.seconds is None:
        return Cost(count, prompts)
    return Cost(
        count, prompts, prompts * plan.seconds.low, prompts * plan.seconds.high, "at most; nothing was seen yet"
    )


def _seen_seconds(seen: pd.DataFrame, choices: Sequence[MethodChoice], lengths: Sequence[int]) -> float:
    """Seconds of all measurements, each by the seconds a token of its method, or of all methods where it is new."""
    per_token = seen["seconds"] / seen["prompt_tokens"].clip(lower=1)
    by_method, usual = per_token.groupby(seen["method"]).median().to_dict(), float(per_token.median())
    return sum(lengths) * sum(by_method.get(choice.method, usual) for choice in choices)


def known_files(root: Path) -> dict[str, FileChoice]:
    """Files of prompts by name: what was uploaded, and what evaluations in the queue named; the newest of a name."""
    found = prompt_files.known_files(root)
    for status in reversed(list_jobs(root)):
        request = request_of(root, status.job_id)
        if isinstance(request, EvalJob):
            found |= {file.path.name: file for file in request.request.files}
    return found


def sample_job(row: Mapping[str, Any], files: Mapping[str, FileChoice], private: bool = False) -> SampleJob:
    """The recorded comparison of a row's prompt under its method; `files` are those of prompts by name.

    It is `private` where the evaluation is.

    Raises:
        UserError: the prompt is from a file that is not known here.
    """
    if row["task"].startswith(HARNESS):
        raise UserError("Prompts of lm-eval are the harness's: save one as a file for `kvlab compare --file`.")
    difficulty = json.loads(row["difficulty"] or "{}")
    choice = MethodChoice(
        method=row["method"],
        budget=int(row["budget"]) if row["budget_unit"] == "slots" else float(row["budget"]),
        hyper_parameters=json.loads(row["hyper_parameters"] or "{}"),
    )
    chat = json.loads(row["chat"]) if isinstance(row.get("chat"), str) else None
    spoken = {"chat": "no"} if chat is None else {"system": chat["system"], "thinking": chat["thinking"]}
    chunk = row["prefill_chunk"]
    common = {
        "model": row["model"], "choices": (choice,), "prefill_chunk": None if pd.isna(chunk) else int(chunk), **spoken,
    }  # fmt: skip
    title = f"{row['task']} {int(row['index']) + 1}: {choice.label}"
    if row["content"]:
        name = str(difficulty.get("file", ""))
        if name not in files:
            raise UserError(f"The file {name!r} of this prompt is not known here: name it again in a new evaluation.")
        cut = {key: difficulty[key] for key in ("max_prompt", "cut") if key in difficulty}
        file = _as_evaluated(files[name], difficulty)
        placed = {} if pd.isna(row["depth"]) else {"lengths": (int(row["length"]),), "depths": (_depth(row["depth"]),)}
        asked = EvalRequest(files=(file,), samples=100_000, seed=int(row["seed"]), **cut, **placed, **common)
        return SampleJob(request=asked, content=row["content"], title=title, private=private)
    depth = row["depth"]
    asked = EvalRequest(
        tasks=(TaskChoice(task=row["task"], difficulty=difficulty),),
        lengths=(int(row["length"]),),
        depths=None if pd.isna(depth) else (_depth(depth),),
        samples=int(row["index"]) + 1,
        seed=int(row["seed"]),
        **common,
    )
    return SampleJob(request=asked, title=title, private=private)


def _depth(depth: Any) -> float:
    return round(float(depth), 6)  # rows keep it in single precision


def _as_evaluated(file: FileChoice, difficulty: Mapping[str, Any]) -> FileChoice:
    """The file with the options of a row; another file that one names is found beside it, where rows keep no folder."""
    options = {name: value for name, value in difficulty.items() if name not in ("file", "max_prompt", "cut")}
    found = {
        name: file.options.get(name, str(file.path.with_name(str(value)))) if name.endswith("_from") else value
        for name, value in options.items()
    }
    return file.model_copy(update={"options": found})
