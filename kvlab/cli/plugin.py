"""`kvlab plugin new | check`: write a first plug-in, or check one; `kvlab doctor` lists what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.options.signature import with_plugins

plugin_commands = typer.Typer(
    help="Methods, tasks, metrics and views of your own, in a file or a package.", no_args_is_help=True
)


@plugin_commands.command("new")
def new(
    name: Annotated[str, typer.Argument(help="the new method's name, such as my-method")],
    folder: Annotated[Path, typer.Option("--folder", help="folder for the two files")] = Path(),
) -> None:
    """Write a working method with its own scorer, and a test of it."""
    from kvlab.core.plugins.template import write_plugin

    method, test = write_plugin(name, folder)
    typer.echo(f"Wrote {method} and {test}. Now:")
    typer.echo(f"  kvlab plugin check {method}")
    typer.echo(f"  kvlab compare --plugin {method} --methods {name},snapkv --sample needle_in_a_story")


@plugin_commands.command("check")
@with_plugins
def check_file(
    file: Annotated[Path, typer.Argument(help="the plug-in")],
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Check every method of a plug-in against kvlab's guarantees, one line per property.

    Uses tiny random models of five families, in float32 and bfloat16, padded and not. Exit status 1: a check failed.
    """
    from kvlab.checking import PROPERTIES, check, from_file

    failed = False
    results = []
    for name, method in from_file(file).items():
        if not as_json:
            typer.echo(name)
        for held in PROPERTIES:
            result = check(method, held)
            failed |= result.verdict == "fails"
            results.append({"method": name, **vars(result)})
            if not as_json:
                typer.echo(f"  {result.verdict:>14}  {result.property}: {result.detail}")
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    if failed:
        raise typer.Exit(1)
