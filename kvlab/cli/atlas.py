"""`kvlab atlas fill` and `ship`: measure the atlas's data at small scale, and pack it for shipping with kvlab."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

atlas_commands = typer.Typer(
    help="Measure the data of the figure atlas, and see its verdict on each paper.", no_args_is_help=True
)


@atlas_commands.command("fill")
def fill(
    out: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs"),
    only: Annotated[str, typer.Option(help="exhibits, such as keepkv/fig-3,gvote/fig-1; default: all")] = "",
    prompts: Annotated[int, typer.Option(min=1, help="number of recorded texts")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="prompts for each task and length of an evaluation")] = 5,
    length: Annotated[int, typer.Option(min=64, help="tokens of an evaluation's prompt")] = 384,
    minutes: Annotated[float, typer.Option(help="start nothing new after this time; run again to continue")] = 1e9,
) -> None:
    """Measure the data of the exhibits on mini; data already in the folder is not measured again."""
    from kvlab.atlas.fill import commands_of
    from kvlab.common.formatting import format_duration
    from kvlab.forms.fill_atlas import Small, filling
    from kvlab.jobs.run_inline import run_here

    commands = commands_of(out, [key for key in only.split(",") if key])
    work = filling(commands, Small(prompts, samples, (length,)))
    stop = time.monotonic() + 60 * minutes
    for place, ordered in enumerate(work, 1):
        if time.monotonic() > stop:
            typer.echo(f"{len(work) - place + 1} of {len(work)} are left: run again to continue.")
            raise typer.Exit(3)
        begun = time.monotonic()
        title = run_here(ordered.work, out, stop)
        typer.echo(f"{place} of {len(work)}  {title}  {format_duration(time.monotonic() - begun)}")


@atlas_commands.command("ship")
def ship(
    runs: Annotated[Path, typer.Option(help="the folder that was filled")] = Path("runs"),
    to: Annotated[Path, typer.Option(help="the folder of shipped results")] = Path("assets/results"),
    machine: Annotated[str, typer.Option(help="the machine it was measured on")] = "two CPU cores",
    only: Annotated[str, typer.Option(help="add only these exhibits of evaluations, as for `fill`")] = "",
) -> None:
    """Pack a filled folder as the results that ship with kvlab."""
    from kvlab.atlas.pack_shipped import pack, pack_also
    from kvlab.common.formatting import format_bytes

    keys = [key for key in only.split(",") if key]
    size = pack_also(runs, to, keys) if keys else pack(runs, to, machine)
    typer.echo(f"{format_bytes(size)} in {to}")


@atlas_commands.command("scores")
def scores(runs: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs")) -> None:
    """Print the verdicts on each paper's claims, from the folder or the shipped results."""
    from kvlab.atlas.scorecard import scorecard

    for line in scorecard(runs).itertuples():
        typer.echo(f"{line.title:12} {line.holds} hold, {line.fails} do not, {line.open} undecided")
