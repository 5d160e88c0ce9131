"""`kvlab data check`: what a file of a benchmark holds, before a GPU hour is spent on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.options.model import CacheDir, Revision
from kvlab.cli.options.plugins import with_plugins
from kvlab.common.errors import UserError
from kvlab.common.validation import shown

if TYPE_CHECKING:
    from kvlab.evaluate.data_check import FileCheck, Lengths

SHOWN_LINES = 20

data_commands = typer.Typer(help="Files of prompts that people bring.", no_args_is_help=True)


def check(
    file: Annotated[str, typer.Argument(help="the file, with options as --data of `kvlab eval` takes them")],
    loader: Annotated[str, typer.Option(help="its format; default: what its fields tell")] = "",
    model: Annotated[str, typer.Option(help="whose tokenizer counts: mini, a local folder, or a hub name")] = "mini",
    max_prompt: Annotated[int | None, typer.Option(help="tokens that a prompt may have; default: the window")] = None,
    cut: Annotated[str, typer.Option(help="what longer prompts lose: start, middle (LongBench) or end")] = "middle",
    revision: Revision = None,
    cache_dir: CacheDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Say which benchmark a file is, its lines, lengths in tokens, and what a run would cut; status 1 for bad lines."""
    from kvlab.evaluate.data_check import check_file
    from kvlab.evaluate.request import split_file
    from kvlab.evaluate.request_parser import parse_cut, parse_whole
    from kvlab.models.tokenizer import load_tokenizer

    try:
        _, path, options = split_file(f"file={file}")
    except ValueError:
        raise UserError(f"{shown(file)} names no file: give its path, with options as FILE:name=value.") from None
    most = parse_whole(max_prompt, "--max-prompt", 8)
    tokenizer, window = load_tokenizer(model, revision, cache_dir)
    found = check_file(Path(path), tokenizer, window, loader, most, parse_cut(cut), options)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"count": found.count}, indent=2, default=str, ensure_ascii=False))
    else:
        _show(found, model)
    if found.malformed:
        raise typer.Exit(1)


def _show(found: FileCheck, model: str) -> None:
    lines: list[tuple[str, Any]] = [
        ("file", found.path),
        ("benchmark", f"{found.benchmark} (--data {found.form}={found.path})"),
        ("prompts", _tasks(found.tasks)),
        ("tokens a prompt", f"{_lengths(found.prompts)} by {model}'s tokenizer"),
        ("tokens an answer", f"{_lengths(found.answers)}; at most {found.new_tokens:,} are written"),
        ("scored by", ", ".join(found.metrics)),
        ("cut", _cut(found)),
        ("malformed", f"{len(found.malformed)} lines" if found.malformed else "no line"),
    ]
    for name, words in lines:
        typer.echo(f"{name:17}{words}")
    for sentence in found.malformed[:SHOWN_LINES]:
        typer.echo(f"  {sentence}")
    if len(found.malformed) > SHOWN_LINES:
        typer.echo(f"  and {len(found.malformed) - SHOWN_LINES:,} more")
    for note in found.notes:
        typer.echo(f"note: {note}")


def _tasks(tasks: dict[str, int]) -> str:
    shown = [f"{count:,} {name}" for name, count in list(tasks.items())[:6]]
    return ", ".join([*shown, *([f"and {len(tasks) - 6} more tasks"] if len(tasks) > 6 else [])])


def _lengths(found: Lengths) -> str:
    return f"median {found.median:,.0f}, 95 % at most {found.p95:,.0f}, longest {found.longest:,}"


def _cut(found: FileCheck) -> str:
    allowed = f"a prompt may have {found.most:,} tokens"
    if not found.shortened:
        return f"nothing ({allowed})"
    share = 100 * found.lost / sum(found.shortened)
    return (
        f"{len(found.shortened):,} of {found.count:,} prompts lose their {found.cut}: {found.lost:,} tokens, "
        f"{share:.0f} % of theirs ({allowed})"
    )


data_commands.command("check")(with_plugins(check))
