"""`kvlab tasks --check FILE`: inspect a benchmark's file before running an evaluation on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvlab.core.errors import UserError
from kvlab.core.validation import quote_value
from kvlab.evaluate.request import split_file

if TYPE_CHECKING:
    from kvlab.evaluate.data_check import FileCheck, Lengths

SHOWN_LINES = 20


def check_data(
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
    from kvlab.evaluate.data_check import check_file
    from kvlab.evaluate.request_parser import parse_cut, parse_whole
    from kvlab.models.tokenizer import load_tokenizer

    try:
        _, path, options = split_file(f"file={file}")
    except ValueError:
        raise UserError(f"{quote_value(file)} names no file: give a path, with options as FILE:name=value.") from None
    most = parse_whole(max_prompt, "--set max_prompt", 8)
    tokenizer, window = load_tokenizer(model, revision, cache_dir)
    report = check_file(Path(path), tokenizer, window, loader, most, parse_cut(cut), options)
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"count": report.count}, indent=2, default=str, ensure_ascii=False))
    else:
        _show(report, model)
    if report.malformed:
        raise typer.Exit(1)


def _show(report: FileCheck, model: str) -> None:
    lines: list[tuple[str, Any]] = [
        ("file", report.path),
        ("benchmark", f"{report.benchmark} (--data {report.form}={report.path})"),
        ("prompts", _tasks(report.tasks)),
        ("tokens per prompt", f"{_lengths(report.prompts)} by {model}'s tokenizer"),
        ("tokens per answer", f"{_lengths(report.answers)}; at most {report.new_tokens:,} are generated"),
        ("scored by", ", ".join(report.metrics)),
        ("cut", _cut(report)),
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


def _tasks(tasks: dict[str, int]) -> str:
    shown = [f"{count:,} {name}" for name, count in list(tasks.items())[:6]]
    return ", ".join([*shown, *([f"and {len(tasks) - 6} more tasks"] if len(tasks) > 6 else [])])


def _lengths(report: Lengths) -> str:
    return f"median {report.median:,.0f}, 95 % at most {report.p95:,.0f}, longest {report.longest:,}"


def _cut(report: FileCheck) -> str:
    allowed = f"at most {report.most:,} tokens per prompt"
    if not report.shortened:
        return f"nothing ({allowed})"
    share = 100 * report.lost / sum(report.shortened)
    return (
        f"{len(report.shortened):,} of {report.count:,} prompts lose their {report.cut}: {report.lost:,} tokens, "
        f"{share:.0f} % of these prompts ({allowed})"
    )
