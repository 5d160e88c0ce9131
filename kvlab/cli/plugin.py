"""`kvlab plugin new | check`: write a first plug-in, or check one; `kvlab doctor` lists what is loaded."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.options.signature import with_plugins
from kvlab.core.errors import UserError

plugin_commands = typer.Typer(
    help="Methods, tasks, metrics and views of your own, in a file or a package.", no_args_is_help=True
)


@plugin_commands.command("new")
def new(
    name: Annotated[str, typer.Argument(help="the new method's name, such as my-method")],
    folder: Annotated[Path, typer.Option("--folder", help="folder for the two files")] = Path(),
) -> None:
    """Write a working method with its own scorer, and a test of it."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or len(name) > 60:
        raise UserError(f"{name!r} cannot be the name of a method: use small letters, digits and hyphens.")
    stem = name.replace("-", "_")
    texts = {f"{stem}.py": "method.py.txt", f"test_{stem}.py": "test.py.txt"}
    words = [word.capitalize() for word in stem.split("_")]
    values = {"name": name, "cls": "".join(words), "title": " ".join(words), "file": f"{stem}.py"}
    existing = [file for file in texts if (folder / file).exists()]
    if existing:
        raise UserError(f"There is a file {existing[0]} in {folder} already: take another name, or another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in texts.items():
        text = (files("kvlab.core.plugins") / "templates" / template).read_text(encoding="utf-8")
        (folder / file).write_text(text.format(**values, test=f"test_{stem}.py"), encoding="utf-8")
    method, test = (folder / file for file in texts)
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
