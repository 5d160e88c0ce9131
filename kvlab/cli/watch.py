"""`kvlab watch`: record and check a KV cache that was not written here."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.core.errors import UserError

watch_commands = typer.Typer(invoke_without_command=True)


@watch_commands.callback(invoke_without_command=True)
def watch(
    context: typer.Context,
    write: Annotated[
        Path | None, typer.Option("--write", help="write the recorder, one file without kvlab, to this path")
    ] = None,
) -> None:
    """Record what a foreign KV cache holds, and hold it against a method.

    `kvlab watch --write kvlab_watch.py` writes the recorder into another project; `kvlab runs import FILE` opens its
    recordings in the dashboard.
    """
    if context.invoked_subcommand is not None:
        return
    if write is None:
        raise UserError(
            "Nothing to do: `kvlab watch --write FILE` writes the recorder, `kvlab watch check FILE` checks."
        )
    from importlib.resources import files

    if write.exists():
        raise UserError(f"{write} exists already: choose another name.")
    write.write_text(files("kvlab.watch").joinpath("recorder.py").read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"{write}: use it as `from {write.stem} import watch`, then `with watch(model) as recording: ...`")


@watch_commands.command("check")
def check_recording(
    file: Annotated[Path, typer.Argument(help="recording, as `recording.save` writes it")],
    method: Annotated[str, typer.Option("--as", help="the method it should be, such as snapkv:preset=code")],
    budget: Annotated[
        str | None, typer.Option(help="share of the prompt, or slots per KV head; default: the recorded slots")
    ] = None,
    model: Annotated[str | None, typer.Option(help="name or folder of the recorded model")] = None,
    row: Annotated[int, typer.Option(help="row of a batch")] = 0,
    out: Annotated[Path | None, typer.Option("--to", help="also write the table (.csv) or its map (.html)")] = None,
) -> None:
    """Compare a recording with kvlab's run of a method; exit status 1 where they differ by more than ties."""
    from kvlab.core.budget import Budget
    from kvlab.watch.check import agreement_figure, check

    amount = None if budget is None else Budget.parse(budget).amount
    if isinstance(amount, str):
        raise UserError("--budget takes a share of the prompt (0.2) or slots per KV head (128) here, not bytes.")
    if out is not None and out.suffix not in (".csv", ".html"):
        raise UserError(f"{out} is neither a .csv nor an .html file.")
    result = check(file, method, amount, model, row)
    for sentence in result.sentences:
        typer.echo(sentence)
    if out is not None and out.suffix == ".csv":
        result.table.to_csv(out, index=False)
    elif out is not None:
        agreement_figure(result).write_html(out, include_plotlyjs=True, config={"showSendToCloud": False})
    if not result.agrees_but_for_ties:
        raise typer.Exit(1)
