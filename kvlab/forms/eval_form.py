"""Build evaluation jobs from the form of Many prompts."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import JsonValue, ValidationError

from kvlab.bench.request import BenchJob, make_request
from kvlab.common.lab import lab
from kvlab.core import MethodChoice, UserError, in_one_sentence
from kvlab.evaluation.request import EvalJob, EvalRequest, FileChoice, SampleJob, TaskChoice, split_file
from kvlab.evaluation.request import known_files as evaluated_files
from kvlab.forms import compare_form, prompt_files
from kvlab.jobs.client import list_jobs, request_of
from kvlab.jobs.size_check import prompt_lengths
from kvlab.models.info.names import check_model
from kvlab.planning.choices import MethodEntry, TaskList, ask
from kvlab.planning.method_footprints import window_notes
from kvlab.tasks.sample import current_difficulty

# Modes of the form and their labels.
KINDS = {
    "decode": "Decode rate",
    "prefill": "Prefill",
    "memory": "Memory",
}


def name_of_results(typed: str) -> str:
    """The typed name of results, or else one with the time."""
    return typed.strip() or f"browser-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def make_bench_job(
    *,
    name: str,
    model: str,
    modes: Sequence[str],
    chosen: Sequence[MethodEntry],
    typed: Mapping[str, Mapping[str, Any]],
    budgets: str,
    contexts: str,
    batches: str,
    private: bool = False,
    **options: Any,
) -> BenchJob:
    """The form's job, one request per mode; `options` are further fields of `BenchRequest`.

    Raises UserError for the first invalid value.
    """
    if not modes:
        raise UserError("There is nothing to measure: choose at least one figure.")
    lists = {"contexts": numbers(contexts, "Tokens in the cache", int), "batches": numbers(batches, "Batches", int)}
    if not all(lists.values()):
        raise UserError("Give at least one number of tokens in the cache, and one batch.")
    fields: dict[str, Any] = {
        "model": model.strip() if model.strip().startswith("shape:") else check_model(model),
        "choices": compare_form.choices_of_form(chosen, typed, budgets),
        **lists,
    }
    requests = tuple(make_request(mode=mode, **fields, **options) for mode in modes)
    figures = ", ".join(KINDS.get(mode, mode).lower() for mode in modes)
    name = name_of_results(name)
    try:
        title = f"Speed {name}: {figures}"
        return BenchJob(name=name, requests=requests, title=title, private=private)
    except ValidationError:
        raise UserError(
            f"Results cannot be called {name[:60]!r}: give letters, digits, dots, dashes and underscores only."
        ) from None


HARNESS = "lm-eval:"  # prefix of tasks whose prompts lm-eval makes
FEW = 4  # prompts per cell that are tried
Number = TypeVar("Number", int, float)


def make_job(
    *,
    name: str,
    model: str,
    tasks: Mapping[str, Mapping[str, JsonValue]],
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
    """The form's job; `options` are further fields of `EvalRequest`, or the form's values for them.

    Raises UserError for the first invalid value.
    """
    all_files = [*read_files(files), *([uploaded] if uploaded else [])]
    if not tasks and not all_files:
        raise UserError("There is nothing to evaluate: choose a task, upload prompts, or name a file.")
    choices = compare_form.choices_of_form(chosen, typed, budgets)
    name = name_of_results(name)
    try:
        request = EvalRequest(
            model=check_model(model),
            tasks=tuple(TaskChoice(task=task, difficulty=dict(values)) for task, values in tasks.items()),
            files=tuple(all_files),
            choices=choices,
            lengths=numbers(lengths, "Lengths", int) or None,
            depths=numbers(depths, "Depths", float) or None,
            **compare_form.request_fields(options),
        )
        subject = ", ".join([*tasks, *(file.path.name for file in all_files)])
        title = f"Evaluation {name}: {subject}"
        return EvalJob(name=name, request=request, title=title, private=private)
    except ValidationError as error:
        if any("name" in detail["loc"] for detail in error.errors()):
            raise UserError(
                f"Results cannot be called {name[:60]!r}: give letters, digits, dots, dashes and underscores only."
            ) from None
        raise UserError(in_one_sentence(error)) from error


def judge_request(request: EvalRequest, listed: TaskList) -> tuple[str, list[str]]:
    """Why the tasks' prompts cannot be generated, such as a length that is too short, empty if they can; and one
    sentence for each method whose own window takes up its budget at a requested length.

    Checked in a second process and cached per request; tasks at default lengths and difficulty are not checked. Raises
    UserError if the process gives no answer.
    """
    probe = request.model_copy(update={"files": (), "choices": (), "samples": min(request.samples, FEW)})
    is_asked = request.lengths or any(choice.difficulty for choice in request.tasks)
    can_fail = is_asked and probe.tasks
    problem = str(_answer("tasks", "--fits", stdin=probe.model_dump_json())["problem"]) if can_fail else ""
    few = request.model_copy(update={"samples": 1})
    notes = (window_notes(request.choices, length) for length in sorted(set(prompt_lengths(few, listed))))
    return problem, list(dict.fromkeys(note for some in notes for note in some))


_answer = lru_cache(maxsize=64)(ask)


def numbers(text: str, what: str, kind: type[Number]) -> tuple[Number, ...]:
    """The numbers of a list without duplicates; raises UserError if one is invalid or out of range."""
    words = text.replace(",", " ").replace(";", " ").split()
    try:
        parsed = tuple(dict.fromkeys(kind(word) for word in words))
    except (ValueError, OverflowError):
        raise UserError(f"{what} are numbers with commas between them, not {text[:60]!r}.") from None
    if kind is int and any(not 1 <= number < 2**31 for number in parsed):
        raise UserError(f"{what} are numbers of tokens of at least 1, not {text[:60]!r}.")
    if kind is float and any(not 0 <= number <= 1 for number in parsed):
        raise UserError(f"{what} are shares of the prompt from 0 to 1, not {text[:60]!r}.")
    return parsed


def read_files(text: str) -> list[FileChoice]:
    """Files given one per line as `format=path`; raises UserError for an invalid line."""
    files = []
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            form, path, options = split_file(line)
        except ValueError:
            raise UserError(
                f"{line[:80]!r} names no file: write format=path, such as ruler=/data/niah/validation.jsonl."
            ) from None
        if lab() is not None:
            raise UserError("On this server prompts come by upload: upload the file instead of naming it.")
        file = Path(path).expanduser()
        if not file.is_file() and not (form == "prompts" and file.is_dir()):
            raise UserError(f"There is no file {str(file)[:200]!r} on this machine: give its whole path.")
        files.append(FileChoice(form=form, path=file.absolute(), options=options))
    return files


def known_files(root: Path) -> dict[str, FileChoice]:
    """Prompt files by name: uploaded, or named by evaluations, in the queue or not; the newest of each name."""
    files = prompt_files.known_files(root)
    for folder in sorted((root / "eval").glob("*"), key=lambda path: path.stat().st_mtime):
        files |= evaluated_files(folder)
    for status in reversed(list_jobs(root)):
        request = request_of(root, status.job_id)
        if isinstance(request, EvalJob):
            files |= {file.path.name: file for file in request.request.files}
    return files


def sample_job(row: Mapping[str, Any], files: Mapping[str, FileChoice], private: bool = False) -> SampleJob:
    """The recorded comparison of a row's prompt under its method; `files` maps names to prompt files.

    It is `private` if the evaluation is. Raises UserError if the prompt is from a file that is not known here.
    """
    if row["task"].startswith(HARNESS):
        raise UserError("Prompts of lm-eval are the harness's: save one as a file for `kvlab compare --file`.")
    difficulty = current_difficulty(row["difficulty"])
    choice = MethodChoice(
        method=row["method"],
        budget=int(row["budget"]) if row["budget_unit"] == "slots" else float(row["budget"]),
        hyper_parameters=json.loads(row["hyper_parameters"] or "{}"),
    )
    chat = json.loads(row["chat"]) if isinstance(row.get("chat"), str) else None
    spoken = {"chat": "no"} if chat is None else {"system": chat["system"], "thinking": chat["thinking"]}
    chunk = row["prefill_chunk"]
    common = {
        "model": row["model"],
        "choices": (choice,),
        "prefill_chunk": None if pd.isna(chunk) else int(chunk),
        **spoken,
    }
    title = f"{row['task']} {int(row['index']) + 1}: {choice.label}"
    depths = None if pd.isna(row["depth"]) else (round(float(row["depth"]), 6),)  # rows store single precision
    if row["content"]:
        name = str(difficulty.get("file", ""))
        if name not in files:
            raise UserError(f"The file {name!r} of this prompt is not known here: name it again in a new evaluation.")
        cut = {key: difficulty[key] for key in ("max_prompt", "cut") if key in difficulty}
        # The file with the row's options; a second file that one names is looked for in the same folder.
        file = files[name]
        options = {key: difficulty[key] for key in difficulty if key not in ("file", "max_prompt", "cut", "forced")}
        for key in options:
            if key.endswith("_from"):
                options[key] = file.options.get(key, str(file.path.with_name(str(options[key]))))
        file = file.model_copy(update={"options": options})
        placed = {} if depths is None else {"lengths": (int(row["length"]),), "depths": depths}
        evaluation = EvalRequest(files=(file,), samples=100_000, seed=int(row["seed"]), **cut, **placed, **common)
        return SampleJob(request=evaluation, content=row["content"], title=title, private=private)
    style = difficulty.pop("style", "continuation")  # the latter is not written
    difficulty.pop("forced", None)
    evaluation = EvalRequest(
        tasks=(TaskChoice(task=row["task"], difficulty=difficulty),),
        style=style,
        lengths=(int(row["length"]),),
        depths=depths,
        samples=int(row["index"]) + 1,
        seed=int(row["seed"]),
        **common,
    )
    return SampleJob(request=evaluation, title=title, private=private)
