"""`kvlab data check`: inspect a benchmark's file before running an evaluation on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.options.model import CacheDir, Revision
from kvlab.cli.options.signature import with_plugins
from kvlab.core.errors import UserError
from kvlab.core.validation import quote_value
from kvlab.evaluate.request import split_file

if TYPE_CHECKING:
    from kvlab.evaluate.data_check import FileCheck, Lengths

SHOWN_LINES = 20

data_commands = typer.Typer(help="Check your own files of prompts.", no_args_is_help=True)


def check(
    file: Annotated[str, typer.Argument(help="the file, with options as for --data of `kvlab eval`")],
    loader: Annotated[str, typer.Option(help="its format; default: recognised from its fields")] = "",
    model: Annotated[
        str, typer.Option(help="model whose tokenizer is used: mini, a local folder, or a hub name")
    ] = "mini",
    max_prompt: Annotated[
        int | None, typer.Option(help="tokens allowed per prompt; default: the model's context window")
    ] = None,
    cut: Annotated[str, typer.Option(help="part cut from longer prompts: start, middle (LongBench) or end")] = "middle",
    revision: Revision = None,
    cache_dir: CacheDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Report a file's benchmark, prompts, token lengths and what would be cut; exit status 1 for malformed lines."""
    from kvlab.evaluate.data_check import check_file
    from kvlab.evaluate.request_parser import parse_cut, parse_whole
    from kvlab.models.chat import load_tokenizer

    try:
        _, path, options = split_file(f"file={file}")
    except ValueError:
        raise UserError(f"{quote_value(file)} names no file: give a path, with options as FILE:name=value.") from None
    most = parse_whole(max_prompt, "--max-prompt", 8)
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


data_commands.command("check")(with_plugins(check))
