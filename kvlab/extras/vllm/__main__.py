"""`python -m kvlab.extras.vllm`: methods inside vLLM on a CPU, compared with kvlab's own run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli import run_alone
from kvlab.cli.options.model import Model
from kvlab.common.atomic_write import replace_text
from kvlab.common.terminal import print_wide
from kvlab.core import Budget, UserError, parse_spec, split_list

METHODS = "full,window,streaming-llm,snapkv,h2o,keepkv,exactmerge2"


def vllm(
    methods: Annotated[str, typer.Argument(help="comma-separated, such as h2o,snapkv:window=16")] = METHODS,
    budget: Annotated[str, typer.Option(help="a share of the prompt, or slots per KV head")] = "0.2",
    model: Model = "mini",
    prompts: Annotated[int, typer.Option(min=1, max=1000, help="number of prompts")] = 10,
    length: Annotated[int, typer.Option(min=160, help="tokens of the longest prompt")] = 384,
    new_tokens: Annotated[int, typer.Option(min=8, help="tokens of the longest answer")] = 32,
    situations: Annotated[str | None, typer.Option(help="comma-separated; default: all")] = None,
    write: Annotated[
        Path | None, typer.Option(help="put the table of this run between the marks of this Markdown file, and ship it")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Run methods inside vLLM on a CPU and say whether slots and tokens equal those of kvlab's own run.

    Needs vLLM's CPU build, which `make vllm` installs into an environment of its own. vLLM computes and schedules;
    kvlab's attention backend holds the slots, so that it is seen what continuous batching, chunked prefill, preemption
    and prefix reuse do to a method. No page is freed. docs/serving.md has the table.
    """
    from kvlab.extras.vllm.requirements import check_installed

    check_installed()
    from kvlab.core.methods import make_method
    from kvlab.extras.vllm.agreement import NAMES, Trial, agreements, make_prompts
    from kvlab.extras.vllm.agreement_table import ship_run, with_agreements
    from kvlab.extras.vllm.model_folder import model_folder
    from kvlab.extras.vllm.session import Choice, Session
    from kvlab.models.load import load_model

    wanted = NAMES if situations is None else split_list(situations)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise UserError(f"There is no situation {unknown[0]!r}; they are {', '.join(NAMES)}.")
    if write is not None and not write.is_file():
        raise UserError(f"There is no file {write}: name a Markdown file.")
    amount = Budget.parse(budget).amount
    made = [(spec, make_method(name, **values)) for spec in split_list(methods) for name, values in [parse_spec(spec)]]
    loaded = load_model(model, "cpu", "float32")
    for _, method in made:
        Session(loaded, Choice(method, amount))  # raises UserError for what the backend cannot hold
    asked = make_prompts(loaded, prompts, length, new_tokens)
    trials = [Trial(loaded, spec, Choice(method, amount), asked) for spec, method in made]
    rows = []
    with model_folder(loaded) as folder:
        for row in agreements(trials, str(folder), wanted):
            rows.append(row)
            if not as_json:
                typer.echo(f"{row.method}, {row.situation}: {row.slots} / {row.tokens} of {row.prompts}", err=True)
            if write is not None:
                everything = ship_run(rows)
                replace_text(write, with_agreements(write.read_text(encoding="utf-8"), everything))
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("method", "situation", "slots equal", "tokens equal", "heads that keep the same tokens", "note")
    for row in rows:
        counts = (f"{count} of {row.prompts}" for count in (row.slots, row.tokens))
        table.add_row(row.method, row.situation, *counts, f"{100 * row.heads:.1f} %", row.note)
    print_wide(table)


if __name__ == "__main__":
    run_alone(vllm)
