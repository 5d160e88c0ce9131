"""`kvlab serve-check`: what a serving engine would have to hold for a method."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.options.model import Device, Model
from kvlab.common.terminal import print_wide
from kvlab.core import Budget, UserError, parse_spec, split_list
from kvlab.planning.serving_table import BEGIN, FURTHER, PAGES, Servability, markdown, replace_between, write_csv


def serve_check(
    methods: Annotated[str | None, typer.Argument(help="comma-separated, such as h2o,snapkv:page=16")] = None,
    every: Annotated[bool, typer.Option("--all", help="every method")] = False,
    budget: Annotated[str, typer.Option(help="a share of the prompt, or slots per KV head")] = "0.2",
    tokens: Annotated[int, typer.Option(min=32, help="length of the text")] = 384,
    model: Model = "mini",
    device: Device = "auto",
    write: Annotated[
        Path | None,
        typer.Option(help="put the table between the marks of this Markdown file; that of --all also ships"),
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option(help="folder of a recorded run of level full, instead of methods; repeatable")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Run methods on a text and say what a serving engine would have to hold for each.

    Level 0: an unmodified engine. 1: a logical length besides the physical one. 2: numbers of slots per layer. 3: per
    head. 4: a bias per slot, or merged keys. Beside it: what a method reads, when it acts, and the share of slots that
    pages really free, as a page with one kept slot stays. docs/serving.md explains the columns.

    With --run the same of recorded runs, from their tables.
    """
    if run and (methods or every or write):
        raise UserError("--run checks recorded runs alone: leave out methods, --all and --write.")
    if run:
        from kvlab.trace import open_run
        from kvlab.views.frames.run_pages import run_servability
        from kvlab.views.frames.wall import wall_of

        found = [run_servability(one, wall_of(one)) for one in map(open_run, run)]
        rows = [replace(row, method=row.title) for row in found]
    else:
        if every == (methods is not None):
            raise UserError("Name methods to check, such as `kvlab serve-check h2o,snapkv:page=16`, or give --all.")
        if write is not None and not every:
            raise UserError("--write needs --all: the table holds every method.")
        from kvlab.checking.servability import check_servability
        from kvlab.core.methods import make_method, registered
        from kvlab.models.load import load_model

        specs = [*registered(), *FURTHER] if methods is None else split_list(methods)
        amount = Budget.parse(budget).amount
        made = [(spec, make_method(name, **values)) for spec in specs for name, values in [parse_spec(spec)]]
        loaded = load_model(model, device)
        rows = [check_servability(method, loaded, amount, tokens, name=spec) for spec, method in made]
    if write is not None:
        write_table(rows, write)
    if as_json:
        typer.echo(json.dumps([row.as_data() for row in rows], indent=2))
    elif len(rows) == 1:
        table = Table("property", rows[0].method)
        for name, value in rows[0].lines():
            table.add_row(name, value)
        print_wide(table)
    else:
        freed = [f"freed, page {page}" for page in PAGES]
        table = Table("method", "level", "why", "reads", "decoding", "second pass", *freed, "one page table")
        for row in rows:
            shares = [*(row.freed[page].layer for page in PAGES), row.freed[PAGES[0]].model]
            acts = ["yes" if holds else "" for holds in (row.decodes, row.second_pass)]
            table.add_row(
                row.method,
                str(row.level),
                row.held.why,
                row.needs,
                *acts,
                *(f"{100 * share:.0f} %" for share in shares),
            )
        table.caption = (
            f"freed: slots in pages of which a layer keeps nothing; one page table for all layers: page {PAGES[0]}"
        )
        print_wide(table)


def write_table(rows: list[Servability], file: Path) -> None:
    """Put the table into a document, and into the file that ships with kvlab."""
    try:
        text = file.read_text(encoding="utf-8")
        file.write_text(replace_between(text, BEGIN, markdown(rows)), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{file} cannot be read and written ({error.strerror or error}): name a Markdown file."
        ) from error
    write_csv(rows)
