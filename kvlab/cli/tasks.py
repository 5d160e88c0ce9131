"""`kvlab tasks`: every task that can be generated, with its difficulty parameters, and the formats of files."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with the formats of files")] = False,
) -> None:
    """List the tasks of `kvlab eval` with what each shows and takes, and the file formats of its --data."""
    from kvlab.tasks.loaders import LOADERS
    from kvlab.tasks.registry import TASKS

    if as_json:
        listed = [
            {
                "name": name,
                "summary": task.summary,
                "parameters": task.parameters,
                "lengths": task.lengths,
                "uses_depth": task.uses_depth,
            }
            for name, task in TASKS.items()
        ]
        typer.echo(json.dumps({"tasks": listed, "formats": list(LOADERS)}, indent=2))
        return
    from rich.table import Table

    from kvlab.cli.table import print_wide

    table = Table("task", "what it shows", "takes", "lengths")
    for name, task in TASKS.items():
        takes = ", ".join(f"{key}={value}" for key, value in task.parameters.items())
        table.add_row(name, task.summary, takes, ", ".join(f"{length:,}" for length in task.lengths))
    print_wide(table)
    typer.echo(f"Formats of --data: {', '.join(LOADERS)}.")
