"""`kvlab tasks`: list the generated tasks and file formats, or measure which tasks a model can do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.options.tables import print_wide
from kvlab.common.terminal import standard_error
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalRequest, TaskChoice


def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with the formats of files")] = False,
    model: Annotated[str, typer.Option(help="measure what this model's full cache scores in each task")] = "",
    samples: Annotated[int, typer.Option(min=1, help="prompts per task, with --model")] = 10,
    style: Annotated[str, typer.Option(help="how the tasks ask, with --model, as for `kvlab eval`")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="folder of results, with --model [default: runs/eval/tasks-MODEL]")
    ] = None,
    fits: Annotated[bool, typer.Option("--fits", hidden=True, help="whether the request on stdin is feasible")] = False,
) -> None:
    """List the tasks of `kvlab eval` with their parameters, and the file formats of its --data.

    With --model: run the full cache alone, and mark tasks that are not informative for this model.
    """
    if fits:
        typer.echo(json.dumps({"problem": _problem(sys.stdin.read())}))
        return
    if model:
        _measure(model, samples, style, out, as_json)
        return
    from kvlab.atlas.paper_tables import table_names
    from kvlab.tasks.loaders import LOADERS, OF_SAMPLES, about, options_of
    from kvlab.tasks.registry import TASKS

    if as_json:
        listed = [
            {
                "name": name,
                "summary": task.summary,
                "parameters": task.parameters,
                "choices": task.choices,
                "lengths": task.lengths,
                "uses_depth": task.uses_depth,
            }
            for name, task in TASKS.items()
        ]
        formats = {name: {"about": about(name), "options": [*options_of(name)]} for name in LOADERS}
        typer.echo(json.dumps({"tasks": listed, "formats": list(LOADERS), "about_formats": formats}, indent=2))
        return
    table = Table("task", "what it tests", "parameters", "lengths")
    for name, task in TASKS.items():
        words = {name: f" ({', '.join(choices)})" for name, choices in task.choices.items()}
        takes = ", ".join(f"{key}={value}{words.get(key, '')}" for key, value in task.parameters.items())
        table.add_row(name, task.summary, takes, ", ".join(f"{length:,}" for length in task.lengths))
    print_wide(table)
    files = Table("format of --data", "what it reads", "options, as FORMAT=FILE:name=value", show_lines=False)
    for name in LOADERS:
        takes = ", ".join(f"{option}={default}" for option, default in options_of(name).items())
        files.add_row(name, about(name), takes)
    files.caption = f"Every format also takes {', '.join(OF_SAMPLES)}; `kvlab data check FILE` inspects a file."
    print_wide(files)
    typer.echo(f"Papers' tables for kvlab eval --preset NAME --data DIR: {', '.join(table_names())}.")


def _measure(model: str, samples: int, style: str, out: Path | None, as_json: bool) -> None:
    """Evaluate the full cache on every generated task and print one line per task.

    A task whose own length does not fit the model's window is measured at the longest that does, or named with the
    reason.
    """
    import pandas as pd

    from kvlab.common.formatting import model_title
    from kvlab.engine.progress import download_reporter
    from kvlab.evaluate.harness import evaluate
    from kvlab.evaluate.job import shown_progress
    from kvlab.evaluate.plan import measurable_tasks
    from kvlab.evaluate.request_parser import parse_style
    from kvlab.models.load import held_model
    from kvlab.results.informative import LEAST_SCORE, abilities
    from kvlab.tasks.registry import TASKS

    title = model_title(model)
    asked = tuple(TaskChoice(task=name) for name in TASKS)
    request = EvalRequest(model=model, tasks=asked, samples=samples, style=parse_style(style))
    folder = out or Path("runs/eval") / f"tasks-{_as_file_name(title)}"
    with shown_progress(standard_error()) as listener:
        loaded = held_model(request, download_reporter(listener))
        possible = measurable_tasks(request, loaded)
        parts = []
        for length, choices in possible.tasks.items():
            part = {"tasks": tuple(choices), "lengths": None if length is None else (length,)}
            parts.append(evaluate(request.model_copy(update=part), folder, loaded, on_progress=listener).rows)
    if not parts:
        raise UserError(f"{title} can do none of the tasks: its window of {possible.window:,} tokens is too short.")
    found = abilities(pd.concat(parts, ignore_index=True))
    found["note"] = [
        _length_note(TASKS[line.task].lengths, line.length, possible.window) for line in found.itertuples()
    ]
    if as_json:
        lines = json.loads(found.to_json(orient="records"))
        lines += [
            {"task": task, "prompts": 0, "score": None, "informative": False, "note": f"not measurable: {reason}"}
            for task, reason in possible.reasons.items()
        ]
        typer.echo(json.dumps(lines, indent=2))
        return
    table = Table("task", "options", "tokens", "metric", "prompts", "full cache", "95 % interval", "")
    for line in found.itertuples():
        low = f"{line.score_low:.2f}"
        high = f"{line.score_high:.2f}"
        words = "; ".join(filter(None, ["" if line.informative else "not informative", line.note]))
        table.add_row(
            line.task,
            line.difficulty,
            str(line.length),
            line.metric,
            str(line.prompts),
            f"{line.score:.2f}",
            f"{low} to {high}",
            words,
        )
    for task, reason in possible.reasons.items():
        table.add_row(task, "", "–", "", "0", "–", "–", f"not measurable: {reason}")
    table.caption = f"{title}; not informative: the full cache scores below {LEAST_SCORE:g}"
    print_wide(table)


def _length_note(default: Sequence[int], length: int, window: int) -> str:
    """Why a task was measured at another length than its own; empty if it was not."""
    if length in default:
        return ""
    return f"shortened from {max(default):,} tokens to fit the window of {window:,}"


def _as_file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.") or "model"


def _problem(request: str) -> str:
    """Why a prompt of the evaluation cannot be generated (`kvlab.forms.eval_form`); empty if all can."""
    from kvlab.evaluate.data_check import check_tasks

    try:
        check_tasks(EvalRequest.model_validate_json(request))
    except UserError as error:
        return str(error)
    return ""
