"""`kvlab methods`: list all methods with their parts, or one method's settings next to its paper's."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from kvlab.cli.stored_list import stored_list
from kvlab.common.terminal import print_wide
from kvlab.core.errors import UserError


def methods(
    name: Annotated[str | None, typer.Argument(help="show this method's settings and its paper's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with all hyper-parameters")] = False,
    held: Annotated[
        bool, typer.Option("--held", hidden=True, help="memory footprints of the methods on stdin")
    ] = False,
) -> None:
    """List the methods with their parts (score, allocate, select, settle), or one method's presets."""
    if held:
        from kvlab.core.methods import make_method

        # Memory footprints (`planning.method_footprints`), or why the settings are refused.
        found: list[dict[str, Any] | str] = []
        for method, settings in json.load(sys.stdin):
            try:
                found.append(dict(make_method(method, **settings).footprints()))
            except UserError as error:
                found.append(str(error))
        typer.echo(json.dumps(found))
        return
    lists = stored_list("methods", "kvlab.core.methods", describe_methods)
    listed = lists["methods"] if name is None else [method for method in lists["methods"] if method["name"] == name]
    if name is not None and not listed:
        from kvlab.core.methods import make_method

        make_method(name)  # raises: it knows of names nearly alike, once all methods are imported
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
    elif name is not None:
        # One method: its summary and presets, and a row per setting.
        (method,) = listed
        paper = f" ({method['paper']})" if method["paper"] else ""
        typer.echo(f"{method['title']}: {method['summary']}{paper}")
        presets = method["presets"]
        for preset_name, preset in presets.items():
            beyond = f" {preset['beyond']}" if preset["beyond"] else ""
            typer.echo(f"preset={preset_name}: {preset['about']}.{beyond}")
        if schema := method["parameters"].get("properties"):
            table = Table("hyper-parameter", "default", *presets, "reason for the default", show_lines=True)
            for setting, field in schema.items():
                cells = []
                for preset in presets.values():
                    published = preset["values"].get(setting)
                    cells.append("–" if published is None else f"{_shown(published['value'])}\n{published['source']}")
                table.add_row(setting, _shown(field.get("default")), *cells, method["reasons"].get(setting, ""))
            print_wide(table)
    else:
        table = Table("method", "family", "score", "allocate", "select", "settle", "acts", "presets")
        for method in lists["methods"]:
            acts = "prompt and decoding" if method["compresses_while_decoding"] else "prompt"
            acts = "never" if method["family"] == "reference" else acts
            table.add_row(
                method["name"], method["family"], *method["choices"].values(), acts, ", ".join(method["presets"])
            )
        print_wide(table)
        typer.echo("Every method works with every store, such as snapkv:store=kivi4:")
        stores = Table("store", "how slots are stored", "bits per number at width 128, with scales")
        for row in lists["stores"]:
            stores.add_row(*row)
        print_wide(stores)
        typer.echo(
            "Every method but less works with every kind of sparse attention, such as snapkv:read=quest:read_share=0.1:"
        )
        kinds = Table("sparse attention", "which slots a decode step reads", "acts on", "settings")
        for row in lists["readings"]:
            kinds.add_row(*row)
        print_wide(kinds)


def describe_methods() -> dict[str, Any]:
    """Every method as `MethodDescription` has it, the stores and kinds of sparse attention, as JSON data."""
    from kvlab.core.budget import STORE_RULES
    from kvlab.core.methods.sparse_attention import EVERYTHING, SPARSE_ATTENTIONS
    from kvlab.core.methods.spec import list_methods
    from kvlab.core.stores import STORES, bits_of

    stores = []
    for name, store in STORES.items():
        bits = f"{bits_of(store, 128):.2f}" if store.packs else "" if name in STORE_RULES else "the model's"
        stores.append((name, store.title, bits))
    kinds = [(EVERYTHING, "all of them", "slots", "")]
    for name, kind in SPARSE_ATTENTIONS.items():
        settings = ", ".join(f"{setting}={_shown(field.default)}" for setting, field in kind.model_fields.items())
        kinds.append((name, kind.title, kind.acts_on, settings))
    return {"methods": [asdict(method) for method in list_methods()], "stores": stores, "readings": kinds}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
