"""`kvlab methods`: list all methods with their parts, or one method's settings next to its paper's."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kvlab.cli.options.tables import print_wide
from kvlab.core.errors import UserError

if TYPE_CHECKING:
    from kvlab.core.methods.catalogue import MethodDescription


def methods(
    name: Annotated[str | None, typer.Argument(help="show this method's settings and its paper's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with all hyper-parameters")] = False,
    held: Annotated[
        bool, typer.Option("--held", hidden=True, help="memory footprints of the methods on stdin")
    ] = False,
) -> None:
    """List the methods with their parts (score, allocate, select, settle), or one method's presets."""
    from kvlab.core.methods.catalogue import list_methods as described

    if held:
        typer.echo(json.dumps([_held(method, settings) for method, settings in json.load(sys.stdin)]))
        return
    listed = described() if name is None else [_named(name, described())]
    if as_json:
        typer.echo(json.dumps([asdict(method) for method in listed], indent=2))
    elif name is not None:
        _show(listed[0])
    else:
        _list(listed)


def _held(method: str, settings: dict[str, Any]) -> dict[str, Any] | str:
    """Memory footprint of the method with these settings (`planning.method_footprints`), or why they are refused."""
    from kvlab.core.methods import make_method

    try:
        return dict(make_method(method, **settings).footprints())
    except UserError as error:
        return str(error)


def _named(name: str, described: list[MethodDescription]) -> MethodDescription:
    from kvlab.core.contract.method import METHODS

    for method in described:
        if method.name == name:
            return method
    raise METHODS.unknown(name)


def _list(described: list[MethodDescription]) -> None:
    from kvlab.core.budget import STORE_RULES
    from kvlab.core.stores import STORES, bits_of

    table = Table("method", "family", "score", "allocate", "select", "settle", "acts", "presets")
    for method in described:
        acts = "prompt and decoding" if method.compresses_while_decoding else "prompt"
        acts = "never" if method.family == "reference" else acts
        table.add_row(method.name, method.family, *method.choices.values(), acts, ", ".join(method.presets))
    print_wide(table)
    typer.echo("Every method works with every store, such as snapkv:store=kivi4:")
    stores = Table("store", "how slots are stored", "bits per number at width 128, with scales")
    for name, store in STORES.items():
        bits = f"{bits_of(store, 128):.2f}" if store.packs else "" if name in STORE_RULES else "the model's"
        stores.add_row(name, store.title, bits)
    print_wide(stores)
    _list_readings()


def _list_readings() -> None:
    from kvlab.core.methods.readings import EVERYTHING, READINGS

    typer.echo("Every method but less works with every reading, such as snapkv:read=quest:read_share=0.1:")
    table = Table("reading", "which slots a decode step reads", "acts on", "settings")
    table.add_row(EVERYTHING, "all of them", "slots", "")
    for name, kind in READINGS.items():
        settings = ", ".join(f"{setting}={_shown(field.default)}" for setting, field in kind.model_fields.items())
        table.add_row(name, kind.title, kind.acts_on, settings)
    print_wide(table)


def _show(method: MethodDescription) -> None:
    typer.echo(f"{method.title}: {method.summary}{f' ({method.paper})' if method.paper else ''}")
    presets: dict[str, Any] = dict(method.presets)
    for name, preset in presets.items():
        beyond = f" {preset['beyond']}" if preset["beyond"] else ""
        typer.echo(f"preset={name}: {preset['about']}.{beyond}")
    if method.parameters.get("properties"):
        print_wide(_settings_table(method, presets))


def _settings_table(method: MethodDescription, presets: dict[str, Any]) -> Table:
    """One row per hyper-parameter: its default, each preset's value and source, and the reason for the default."""
    table = Table("hyper-parameter", "default", *presets, "reason for the default", show_lines=True)
    schema: Any = method.parameters["properties"]
    for name, field in schema.items():
        cells = []
        for preset in presets.values():
            there = preset["values"].get(name)
            cells.append("–" if there is None else f"{_shown(there['value'])}\n{there['source']}")
        table.add_row(name, _shown(field.get("default")), *cells, method.reasons.get(name, ""))
    return table


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
