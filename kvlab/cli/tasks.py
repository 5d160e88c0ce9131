"""`kvlab tasks`: list tasks and file formats, inspect a file, or measure which tasks a model can do."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvlab.cli.options.model import CacheDir, Revision
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.cli.stored_list import stored_list
from kvlab.common.terminal import print_wide, standard_error
from kvlab.core import UserError, quote_value
from kvlab.evaluation.request import EvalRequest, TaskChoice, split_file

SHOWN_LINES = 20


@group_parameters
def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with the formats of files")] = False,
    check: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="inspect this file of prompts, with options as for --data"),
    ] = None,
    model: Annotated[
        str, typer.Option(help="measure what this model's full cache scores in each task; with --check its tokenizer")
    ] = "",
    samples: Annotated[int, typer.Option(min=1, help="prompts per task, with --model")] = 10,
    style: Annotated[str, Setting("how the tasks ask, with --model, as for kvlab eval")] = "auto",
    loader: Annotated[str, Setting("with --check, the file's format, by default recognised from its fields")] = "",
    max_prompt: Annotated[int | None, Setting("with --check, tokens allowed per prompt, by default the window")] = None,
    cut: Annotated[str, Setting("with --check, part cut from longer prompts, start, middle or end")] = "middle",
    revision: Revision = None,
    cache_dir: CacheDir = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of results, with --model [default: runs/eval/tasks-MODEL]")
    ] = None,
    fits: Annotated[bool, typer.Option("--fits", hidden=True, help="whether the request on stdin is feasible")] = False,
) -> None:
    """List the tasks of `kvlab eval` with their parameters, and the file formats of its --data.

    With --model: run the full cache alone, and mark tasks that are not informative for this model. With --check: report
    a file's benchmark, prompts, token lengths and what would be cut; exit status 1 for malformed lines.
    """
    if fits:
        from kvlab.evaluation.data_check import check_tasks

        # Why a prompt of the evaluation cannot be generated (`kvlab.forms.eval_form`); empty if all can.
        problem = ""
        try:
            check_tasks(EvalRequest.model_validate_json(sys.stdin.read()))
        except UserError as error:
            problem = str(error)
        typer.echo(json.dumps({"problem": problem}))
        return
    if check is not None:
        _check(check, loader, model or "mini", max_prompt, cut, revision, cache_dir, as_json)
        return
    if model:
        _measure(model, samples, style, out, as_json)
        return
    lists = stored_list("tasks", "kvlab.tasks.registry", describe_tasks)
    if as_json:
        typer.echo(json.dumps(lists, indent=2))
        return
    table = Table("task", "what it tests", "parameters", "lengths")
    for task in lists["tasks"]:
        words = {name: f" ({', '.join(choices)})" for name, choices in task["choices"].items()}
        takes = ", ".join(f"{key}={value}{words.get(key, '')}" for key, value in task["parameters"].items())
        table.add_row(task["name"], task["summary"], takes, ", ".join(f"{length:,}" for length in task["lengths"]))
    print_wide(table)
    files = Table("format of --data", "what it reads", "options, as FORMAT=FILE:name=value", show_lines=False)
    for name, form in lists["about_formats"].items():
        takes = ", ".join(f"{option}={default}" for option, default in form["defaults"].items())
        files.add_row(name, form["about"], takes)
    of_samples = ", ".join(lists["of_samples"])
    files.caption = f"Every format also takes {of_samples}; `kvlab tasks --check FILE` inspects a file."
    print_wide(files)
    typer.echo(f"Papers' tables for kvlab eval --preset NAME --data DIR: {', '.join(lists['paper_tables'])}.")


def describe_tasks() -> dict[str, Any]:
    """Every task, every format of files and the papers' tables, as JSON data."""
    from kvlab.papers.paper_tables import table_names
    from kvlab.tasks.loaders import LOADERS, OF_SAMPLES, about, options_of
    from kvlab.tasks.registry import TASKS

    fields = ("summary", "parameters", "choices", "lengths", "uses_depth")
    formats = {
        name: {"about": about(name), "options": [*options_of(name)], "defaults": dict(options_of(name))}
        for name in LOADERS
    }
    return {
        "tasks": [{"name": name} | {field: getattr(task, field) for field in fields} for name, task in TASKS.items()],
        "formats": list(LOADERS),
        "about_formats": formats,
        "of_samples": list(OF_SAMPLES),
        "paper_tables": list(table_names()),
    }


def _measure(model: str, samples: int, style: str, out: Path | None, as_json: bool) -> None:
    """Evaluate the full cache on every generated task and print one line per task.

    A task whose own length does not fit the model's window is measured at the longest that does, or named with the
    reason.
    """
    import pandas as pd

    from kvlab.common.answer_match import LEAST_SCORE
    from kvlab.common.formatting import model_title
    from kvlab.engine.progress import download_reporter
    from kvlab.evaluation.harness import evaluate
    from kvlab.evaluation.job import shown_progress
    from kvlab.evaluation.plan import measurable_tasks
    from kvlab.evaluation.request_parser import parse_word
    from kvlab.models.load import held_model
    from kvlab.results.informative import abilities
    from kvlab.tasks.registry import TASKS

    title = model_title(model)
    asked = tuple(TaskChoice(task=name) for name in TASKS)
    request = EvalRequest(model=model, tasks=asked, samples=samples, style=parse_word("style", style))
    file_name = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.") or "model"
    folder = out or Path("runs/eval") / f"tasks-{file_name}"
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
        ""
        if line.length in TASKS[line.task].lengths
        else f"shortened from {max(TASKS[line.task].lengths):,} tokens to fit the window of {possible.window:,}"
        for line in found.itertuples()
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


def _check(
    file: str,
    loader: str,
    model: str,
    max_prompt: int | None,
    cut: str,
    revision: str | None,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Report a file's benchmark, prompts, token lengths and what would be cut; exit status 1 for malformed lines."""
    from kvlab.evaluation.data_check import check_file
    from kvlab.evaluation.request_parser import parse_whole, parse_word
    from kvlab.models.chat import load_tokenizer

    try:
        _, path, options = split_file(f"file={file}")
    except ValueError:
        raise UserError(f"{quote_value(file)} names no file: give a path, with options as FILE:name=value.") from None
    most = parse_whole(max_prompt, "--set max_prompt", 8)
    tokenizer, window = load_tokenizer(model, revision, cache_dir)
    report = check_file(Path(path), tokenizer, window, loader, most, parse_word("cut", cut), options)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, default=str, ensure_ascii=False))
    else:
        tasks = report.tasks
        allowed = f"at most {report.most:,} tokens per prompt"
        words_of_cut = f"nothing ({allowed})"
        if report.shortened:
            share = 100 * report.lost / sum(report.shortened)
            words_of_cut = (
                f"{len(report.shortened):,} of {report.count:,} prompts lose their {report.cut}: {report.lost:,} "
                f"tokens, {share:.0f} % of these prompts ({allowed})"
            )
        of_prompts, of_answers = (
            f"median {found.median:,.0f}, 95 % at most {found.p95:,.0f}, longest {found.longest:,}"
            for found in (report.prompts, report.answers)
        )
        shown = [f"{count:,} {name}" for name, count in list(tasks.items())[:6]]
        lines: list[tuple[str, Any]] = [
            ("file", report.path),
            ("benchmark", f"{report.benchmark} (--data {report.form}={report.path})"),
            ("prompts", ", ".join([*shown, *([f"and {len(tasks) - 6} more tasks"] if len(tasks) > 6 else [])])),
            ("tokens per prompt", f"{of_prompts} by {model}'s tokenizer"),
            ("tokens per answer", f"{of_answers}; at most {report.new_tokens:,} are generated"),
            ("scored by", ", ".join(report.metrics)),
            ("cut", words_of_cut),
            ("malformed", f"{len(report.malformed)} lines" if report.malformed else "none"),
        ]
        for name, words in lines:
            typer.echo(f"{name:18}{words}")
        for sentence in report.malformed[:SHOWN_LINES]:
            typer.echo(f"  {sentence}")
        if len(report.malformed) > SHOWN_LINES:
            typer.echo(f"  and {len(report.malformed) - SHOWN_LINES:,} more")
        for note in report.notes:
            typer.echo(f"note: {note}")
    if report.malformed:
        raise typer.Exit(1)
