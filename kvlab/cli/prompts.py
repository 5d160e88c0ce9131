"""`kvlab prompts`: the user's library of prompts, stored next to the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.options.prompt import AnswerOptions, PromptOptions
from kvlab.cli.options.signature import group_parameters
from kvlab.cli.options.tables import print_wide
from kvlab.core.errors import UserError
from kvlab.requests.compare import OnePrompt

prompts_commands = typer.Typer(help="Save prompts under a name, list, show, rename and remove them.")
Root = Annotated[Path, typer.Option("--runs", help="the folder of runs, next to which prompts are stored")]
Name = Annotated[str, typer.Argument(metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
RUNS = Path("runs")


@prompts_commands.command("ls")
def list_prompts(
    words: Annotated[str, typer.Argument(help="words of the name or the text")] = "",
    root: Root = RUNS,
    as_json: Json = False,
) -> None:
    """List saved prompts by name."""
    from kvlab.library.prompts import saved_prompts

    found = saved_prompts(root, words)
    if as_json:
        typer.echo(json.dumps([one.model_dump(mode="json", exclude={"prompt", "turns"}) for one in found], indent=2))
        return
    table = Table("name", "kind", "answer", "saved", "text")
    for one in found:
        table.add_row(one.name, one.kind, one.answer or "–", one.saved[:10], " ".join(one.prompt[:200].split())[:50])
    print_wide(table)
    none = "No saved prompt matches." if words else "Nothing is saved yet: kvlab prompts save NAME --file PATH"
    typer.echo("Run one: kvlab compare --saved NAME" if found else none)


@prompts_commands.command("show")
def show(name: Name, root: Root = RUNS, as_json: Json = False) -> None:
    """Print a saved prompt; its answer and facts go to standard error."""
    from kvlab.library.prompts import load_prompt

    one = load_prompt(root, name)
    if as_json:
        typer.echo(one.model_dump_json(indent=2))
        return
    typer.echo(one.prompt)
    if one.answer is not None:
        typer.echo(f"Answer: {' or '.join((one.answer, *one.other_answers))}", err=True)
    for start, stop in one.facts:
        typer.echo(f"Fact: {one.prompt[start:stop]}", err=True)
    for note in one.notes:
        typer.echo(f"Note: {note}", err=True)


@prompts_commands.command("save")
@group_parameters
def save(
    name: Name,
    *,
    text: PromptOptions,
    answer: AnswerOptions,
    root: Root = RUNS,
    replace: Annotated[bool, typer.Option("--replace", help="overwrite a prompt of this name")] = False,
) -> None:
    """Save a prompt under a name, with its answer and facts."""
    from kvlab.library.prompts import save_prompt

    found = text.read_all(root)
    if len(found) > 1:
        raise UserError(f"There are {len(found)} prompts, and only one can be saved: choose it with --rows.")
    saved = save_prompt(root, name, OnePrompt(**answer.fields(found)), replace)
    typer.echo(f"Saved {saved.name}, {saved.kind}. Run it: kvlab compare --saved {saved.name!r}")


@prompts_commands.command("rename")
def rename(name: Name, to: Annotated[str, typer.Argument(metavar="NEW_NAME")], root: Root = RUNS) -> None:
    """Rename a saved prompt."""
    from kvlab.library.prompts import rename_prompt

    typer.echo(f"{name} is now {rename_prompt(root, name, to).name}.")


@prompts_commands.command("rm")
def remove(names: Annotated[list[str], typer.Argument(metavar="NAME...")], root: Root = RUNS) -> None:
    """Remove saved prompts; `kvlab prompts restore NAME` restores one."""
    from kvlab.library.prompts import remove_prompts

    for name in remove_prompts(root, names):
        typer.echo(f"Removed {name}. Undo: kvlab prompts restore {name!r}")


@prompts_commands.command("restore")
def restore(name: Name, root: Root = RUNS) -> None:
    """Restore a removed prompt."""
    from kvlab.library.prompts import restore_prompt

    typer.echo(f"{restore_prompt(root, name).name} is restored.")
