"""`kvlab plan`: count a comparison's memory before loading anything."""

import json
import re
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.compare import Json, LevelOfMany, RequestOptions, make_request
from kvlab.cli.options.plan_check import notes_of
from kvlab.cli.options.repeats import RepeatsOptions
from kvlab.cli.options.signature import group_parameters
from kvlab.common.formatting import format_bytes
from kvlab.common.terminal import print_wide
from kvlab.core import UserError, quote_value
from kvlab.jobs.size_check import plan_of, tokens_of
from kvlab.planning.plan import this_machine
from kvlab.requests.compare import OnePrompt

DEFAULT_METHODS = "streaming-llm,h2o,snapkv,zsmerge,keepkv"
DEFAULT_BUDGETS = "0.2"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
MOST_MEMORY = 10**15


@group_parameters
def plan(
    methods: Annotated[str, typer.Option(help="comma-separated, as for compare")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = DEFAULT_BUDGETS,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="length of the prompt in tokens, in place of a text")
    ] = None,
    *,
    options: RequestOptions,
    level: LevelOfMany = "",
    repeats: RepeatsOptions,
    memory: Annotated[str | None, typer.Option(help="plan for a device with this memory, such as 24GB")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="plan for this number of such devices (--placement auto)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count what a comparison holds in memory, weights, caches and logits, and whether that fits.

    Takes the options of compare. The model is mini, a folder, a hub model loaded here before, or a shape such as
    shape:llama3-8b; weights are not loaded. Memory is that of the longest prompt; kernels and recordings take more.
    With --memory the device need not exist. Exit status 1: it does not fit, or exceeds the model's context window.
    """
    from kvlab.common.formatting import model_title
    from kvlab.forms.compare_form import too_long_message

    if tokens is not None and options.text.given:
        raise UserError("Give a prompt, or its length with --tokens, not both.")
    planted = repeats.plantings(options.seed)
    prompts = [OnePrompt(prompt="-")] if tokens is not None else options.text.read_all(options.out)
    fields = options.fields(prompts, level, bool(planted))
    request = make_request(options.storage.added_to(methods), budgets, repeats=planted, **fields)
    count, exact = (tokens, True) if tokens is not None else tokens_of(request)
    machine = None  # this one
    if memory is not None or devices is not None:
        machine = this_machine(options.model.device, None if memory is None else parse_memory(memory), devices)
    estimate = plan_of(request, count, machine)
    too_long = too_long_message(request.model, count, request.max_new_tokens) if exact else ""
    if as_json:
        typer.echo(json.dumps(estimate.as_data() | {"too_long": too_long}, indent=2))
    else:
        model = estimate.model
        counted = "counted" if model.counted else "computed from the shape"
        typer.echo(
            f"{model_title(model.name)}: {model.parameters:,} parameters ({counted}), {model.layers} layers, "
            f"{model.key_value_heads} KV heads of {model.head_dim}; {estimate.tokens:,} prompt tokens, on "
            f"{estimate.machine.name}"
        )
        parts = Table("part", "bytes", "what it is")
        for part in estimate.parts:
            parts.add_row(part.name, format_bytes(part.bytes), part.why)
        print_wide(parts)
        typer.echo(estimate.verdict)
    for sentence in notes_of(request, count):
        typer.echo(sentence, err=True)
    if too_long and not as_json:
        typer.echo(f"It cannot start: {too_long[0].lower()}{too_long[1:]}")
    if too_long or not estimate.fits:
        raise typer.Exit(1)


def parse_memory(text: str) -> int:
    """Parse an amount of memory such as 24GB, 512 MB or 800000; raises UserError if invalid."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    amount = float(match[1]) * UNITS[match[2].upper()] if match else 0.0
    if not 0 < amount <= MOST_MEMORY:
        raise UserError(f"--memory {quote_value(text)} is not an amount of memory: write it as 24GB.")
    return int(amount)
