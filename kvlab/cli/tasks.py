"""`kvlab tasks`: list the generated tasks with their difficulty parameters, and the file formats."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, with the formats of files")] = False,
    fits: Annotated[bool, typer.Option("--fits", hidden=True, help="whether the request on stdin is feasible")] = False,
) -> None:
    """List the tasks of `kvlab eval` with their parameters, and the file formats of its --data."""
    if fits:
        typer.echo(json.dumps({"problem": _problem(sys.stdin.read())}))
        return
    from kvlab.atlas.paper_tables import table_names
    from kvlab.tasks.loaders import LOADERS, OF_SAMPLES, about, options_of
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
        formats = {name: {"about": about(name), "options": [*options_of(name)]} for name in LOADERS}
        typer.echo(json.dumps({"tasks": listed, "formats": list(LOADERS), "about_formats": formats}, indent=2))
        return
    from rich.table import Table

    from kvlab.cli.options.tables import print_wide

    table = Table("task", "what it tests", "parameters", "lengths")
    for name, task in TASKS.items():
        takes = ", ".join(f"{key}={value}" for key, value in task.parameters.items())
        table.add_row(name, task.summary, takes, ", ".join(f"{length:,}" for length in task.lengths))
    print_wide(table)
    files = Table("format of --data", "what it reads", "options, as FORMAT=FILE:name=value", show_lines=False)
    for name in LOADERS:
        takes = ", ".join(f"{option}={default}" for option, default in options_of(name).items())
        files.add_row(name, about(name), takes)
    files.caption = f"Every format also takes {', '.join(OF_SAMPLES)}; `kvlab data check FILE` inspects a file."
    print_wide(files)
    typer.echo(f"Papers' tables for kvlab eval --preset NAME --data DIR: {', '.join(table_names())}.")


def _problem(request: str) -> str:
    """Why a prompt of the evaluation cannot be generated (`kvlab.forms.eval_form`); empty if all can."""
    from kvlab.common.errors import UserError
    from kvlab.evaluate.data_check import check_tasks
    from kvlab.evaluate.request import EvalRequest

    try:
        check_tasks(EvalRequest.model_validate_json(request))
    except UserError as error:
        return str(error)
    return ""
