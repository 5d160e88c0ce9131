"""`kvlab prompts`: the user's library of prompts, stored next to the runs."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvlab.cli.options.prompt import AnswerOptions, PromptOptions
from kvlab.cli.options.signature import group_parameters
from kvlab.common.terminal import print_wide
from kvlab.core.errors import UserError
from kvlab.requests.compare import OnePrompt

prompts_commands = typer.Typer(help="Save prompts under a name, list, print and remove them.")
Root = Annotated[Path, typer.Option("--runs", help="the folder of runs, next to which prompts are stored")]
Name = Annotated[str, typer.Argument(metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
RUNS = Path("runs")


@prompts_commands.command("ls")
def list_prompts(
    name: Annotated[str, typer.Argument(help="print this one in full; default: list all")] = "",
    root: Root = RUNS,
    as_json: Json = False,
) -> None:
    """List saved prompts by name, or print one; its answer and facts go to standard error."""
    from kvlab.library.prompts import load_prompt, saved_prompts

    if name:
        prompt = load_prompt(root, name)
        if as_json:
            typer.echo(prompt.model_dump_json(indent=2))
            return
        typer.echo(prompt.prompt)
        if prompt.answer is not None:
            typer.echo(f"Answer: {' or '.join((prompt.answer, *prompt.other_answers))}", err=True)
        for start, stop in prompt.facts:
            typer.echo(f"Fact: {prompt.prompt[start:stop]}", err=True)
        for note in prompt.notes:
            typer.echo(f"Note: {note}", err=True)
        return
    found = saved_prompts(root, "")
    if as_json:
        listed = [prompt.model_dump(mode="json", exclude={"prompt", "turns"}) for prompt in found]
        typer.echo(json.dumps(listed, indent=2))
        return
    table = Table("name", "kind", "answer", "saved", "text")
    for prompt in found:
        text = " ".join(prompt.prompt[:200].split())[:50]
        table.add_row(prompt.name, prompt.kind, prompt.answer or "–", prompt.saved[:10], text)
    print_wide(table)
    nothing = "Nothing is saved yet: kvlab prompts save NAME --file PATH"
    typer.echo("Run one: kvlab compare --saved NAME" if found else nothing)


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
    """Save a prompt under a name, with its answer and facts; --saved OLD copies one."""
    from kvlab.library.prompts import save_prompt

    found = text.read_all(root)
    if len(found) > 1:
        raise UserError(f"There are {len(found)} prompts, and only one can be saved: choose it with --rows.")
    saved = save_prompt(root, name, OnePrompt(**answer.fields(found)), replace)
    typer.echo(f"Saved {saved.name}, {saved.kind}. Run it: kvlab compare --saved {saved.name!r}")


@prompts_commands.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    root: Root = RUNS,
    undo: Annotated[bool, typer.Option("--undo", help="restore these removed prompts instead")] = False,
) -> None:
    """Remove saved prompts, or restore removed ones."""
    from kvlab.library.prompts import remove_prompts, restore_prompt

    if undo:
        for name in names:
            typer.echo(f"{restore_prompt(root, name).name} is restored.")
        return
    for name in remove_prompts(root, names):
        typer.echo(f"Removed {name}. Undo: kvlab prompts rm --undo {name!r}")
