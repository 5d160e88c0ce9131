"""`kvlab models`: the models that need no download, as the dashboard's form offers them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.common.errors import UserError

Folders = Annotated[
    list[Path] | None, typer.Option("--models", metavar="DIR", help="a folder of models to offer too; repeatable")
]


def models(
    folders: Folders = None,
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs; models that ran there are listed")] = Path(
        "runs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """List the models on this machine: mini, those of --models, of earlier runs, and in the hub's cache."""
    from kvlab.catalogue.models import local_models

    offer(folders)
    found = [_about(name) for name in local_models(runs.absolute())]
    typer.echo(json.dumps(found, indent=2)) if as_json else _show(found)


def offer(folders: list[Path] | None) -> None:
    """Put folders of models on offer, for this process and those it starts. Raises UserError for one without models."""
    from kvlab.server.offered_models import FOLDERS, given

    if folders:
        os.environ[FOLDERS] = given(folders)


def _about(name: str) -> dict[str, Any]:
    """What can be said without loading it; fields that its files do not tell are None."""
    from kvlab.model_info.chat_template import has_template
    from kvlab.model_info.names import context_length
    from kvlab.planning import find_model

    said = {"name": name, "family": None, "parameters": None, "context": context_length(name)}
    try:
        model = find_model(name)
        said |= {"family": model.family, "parameters": model.parameters}
    except UserError:
        pass
    return said | {"chat": has_template(name)}


def _show(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from kvlab.cli.options.tables import print_wide

    table = Table("model", "family", "parameters", "reads, tokens", "chat template")
    for model in found:
        numbers = [f"{model[name]:,}" if model[name] else "–" for name in ("parameters", "context")]
        table.add_row(model["name"], model["family"] or "–", *numbers, "yes" if model["chat"] else "no")
    print_wide(table)
