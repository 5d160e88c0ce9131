"""Options and output of a simulated engine: `kvlab plan --serve`, and `kvlab serve-check --capacity`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.options.tables import print_wide
from kvlab.core.method_spec import split_list
from kvlab.figures.serving import caption_users_by_budget
from kvlab.serving.capacity import SHARES, Limits, Users, by_budget, by_method
from kvlab.serving.devices import assumptions, engine_of
from kvlab.serving.method_table import of_methods
from kvlab.serving.simulation import Lengths


@dataclass(frozen=True)
class ServedOptions:
    """The engine's device, its pages, and the limits that 95 % of the requests must meet."""

    on: Annotated[str, typer.Option(help="serve on h100, h200, a100, l4, or here (this CPU, measured)")] = "h100"
    per_token: Annotated[float, typer.Option(min=0.001, help="seconds per token, for 95 % of the requests")] = 0.05
    to_first: Annotated[float, typer.Option(min=0.001, help="seconds to the first token, for 95 %")] = 10.0
    page: Annotated[int, typer.Option(min=1, help="tokens of a page of the engine")] = 16
    bench: Annotated[
        Path | None, typer.Option(help="times of steps from this file of `kvlab bench decode`, not from figures")
    ] = None


@dataclass(frozen=True)
class Served:
    """What is served: a model in this memory (None: the device's), with prompts and answers of these mean tokens."""

    model: str
    memory: int | None
    prompt: int
    answer: int


def print_capacity(
    options: ServedOptions, served: Served, shares: tuple[float, ...] = SHARES, methods: str = "", as_json: bool = False
) -> None:
    """Simulate the engine and print requests per second by share of slots held, and of `methods` freed in place.

    Raises UserError for a device, model or method that is not known, and if the full cache meets the limits at no rate.
    """
    engine, device = engine_of(served.model, options.on, options.page, served.memory, options.bench)
    users = Users(Lengths(served.prompt), Lengths(served.answer), Limits(options.per_token, options.to_first))
    frame = by_budget(engine, users, shares)
    in_place = by_method(engine, users, of_methods(split_list(methods))) if methods else None
    if as_json:
        data = {"by_budget": frame.to_dict("records"), "assumptions": assumptions(engine, device, served.model)}
        data |= {} if in_place is None else {"in_place": in_place.to_dict("records")}
        typer.echo(json.dumps(data, indent=2))
        return
    table = Table("slots held", "requests per second", "times full", "requests in memory", "times full")
    for row in frame.to_dict("records"):
        table.add_row(f"{100 * row['budget']:.0f} %", *_cells(row))
    print_wide(table)
    if in_place is not None:
        rates = ("requests/s", "times full", "in memory", "times full")
        table = Table("method at 20 %, pages freed in place", "slots held", *rates)
        for row in in_place.to_dict("records"):
            table.add_row(row["method"], f"{100 * row['budget']:.0f} %", *_cells(row))
        print_wide(table)
    typer.echo(caption_users_by_budget(frame))
    typer.echo(assumptions(engine, device, served.model))


def _cells(row: dict[str, float]) -> list[str]:
    return [f"{row[name]:.3g}" for name in ("rate", "rate_ratio", "together", "together_ratio")]
