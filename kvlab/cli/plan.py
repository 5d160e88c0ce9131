"""`kvlab plan`: what a comparison will take of this machine, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvlab.cli.compare import LevelOfMany, level_of
from kvlab.cli.options.compare_request import AskedOptions, Json, make_request
from kvlab.cli.options.groups import grouped
from kvlab.cli.options.repeats import RepeatsOptions
from kvlab.common.errors import UserError
from kvlab.common.validation import shown
from kvlab.requests.compare import OnePrompt

if TYPE_CHECKING:
    from kvlab.planning import Machine, Plan


@grouped
def plan(
    methods: Annotated[str, typer.Option(help="comma-separated, as for compare")] = (
        "streaming-llm,h2o,snapkv,zsmerge,keepkv"
    ),
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = "0.2",
    tokens: Annotated[int | None, typer.Option(min=1, help="a prompt of so many tokens, in place of a text")] = None,
    *,
    asked: AskedOptions,
    level: LevelOfMany = "",
    repeats: RepeatsOptions,
    memory: Annotated[str | None, typer.Option(help="plan for a device with so much, such as 24GB")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="plan for so many such devices: --placement auto")] = None,
    as_json: Json = False,
) -> None:
    """Say what a comparison needs: memory part by part, disk and time; and which setting makes it fit.

    It takes the options of compare. `model` is mini, a folder, a hub model that was loaded here before, or a shape such
    as shape:llama3-8b; weights are never loaded. Of several prompts the longest is planned, and time and disk are for
    all. With --memory the device need not be here. Exit status 1: it does not fit, or is longer than the model reads.
    """
    from kvlab.cli.options.plan_check import notes_of
    from kvlab.forms.compare_form import too_long_message
    from kvlab.jobs.plan_check import plan_of, tokens_of

    if tokens is not None and asked.text.given:
        raise UserError("Give a prompt, or its length with --tokens, not both.")
    planted = repeats.plantings(asked.seed)
    found = [OnePrompt(prompt="-")] if tokens is not None else asked.text.read_all(asked.out)
    fields = asked.of(found, level or level_of(len(found), planted), bool(planted))
    request = make_request(asked.parts.added_to(methods), budgets, repeats=planted, **fields)
    count, exact = (tokens, True) if tokens is not None else tokens_of(request)
    made = plan_of(request, asked.out, count, _machine(asked.model.device, asked.out, memory, devices))
    too_long = too_long_message(request.model, count, request.max_new_tokens) if exact else ""
    typer.echo(json.dumps(made.as_data() | {"too_long": too_long}, indent=2)) if as_json else _show(made)
    for sentence in notes_of(request, count):
        typer.echo(sentence, err=True)
    if too_long and not as_json:
        typer.echo(f"It cannot start: {too_long[0].lower()}{too_long[1:]}")
    if too_long or not made.fits:
        raise typer.Exit(1)


def _machine(device: str, root: Path, memory: str | None, devices: int | None) -> Machine | None:
    """The machine to plan for where its memory or number of devices is given; None for this one."""
    from kvlab.planning import this_machine

    if memory is None and devices is None:
        return None
    return this_machine(device, root, None if memory is None else parse_memory(memory), devices)


def parse_memory(text: str) -> int:
    """Bytes in words such as 24GB, 512 MB or 800000; raises UserError for anything else."""
    from kvlab.server.quotas import bytes_of

    try:
        return bytes_of(text)
    except UserError:
        raise UserError(f"--memory {shown(text)} is no amount of memory: write it like 24GB.") from None


def _show(made: Plan) -> None:
    from rich.table import Table

    from kvlab.cli.options.tables import print_wide
    from kvlab.common.formatting import format_bytes

    model, places = made.model, {"device": made.machine.device, "host": "host", "disk": "disk"}
    counted = "counted" if model.counted else "worked out from the shape"
    typer.echo(
        f"{model.name}: {model.parameters:,} parameters ({counted}), {model.layers} layers, {model.key_value_heads} KV "
        f"heads of {model.head_dim}; {made.tokens:,} prompt tokens, on {made.machine.name}"
    )
    parts = Table("part", "where", "at most", "what it is", caption="not all of it at the same time")
    for part in made.parts:
        parts.add_row(part.name, places[part.place], format_bytes(part.bytes), part.why)
    print_wide(parts)
    stages = Table("at its worst moment", "device", "host")
    for phase in made.stages.values():
        stages.add_row(phase.name, *(format_bytes(phase.bytes_on(place)) for place in ("device", "host")))
    print_wide(stages)
    typer.echo(f"Time, without loading: {made.seconds or 'not known, as nothing has run on this device yet'}.")
    typer.echo(made.verdict)
