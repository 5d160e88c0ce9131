"""`kvlab atlas`: measure what the atlas draws from, at a small size; pack it for shipping; print the scorecard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from kvlab.bench.request import BenchJob
from kvlab.common.formatting import format_bytes, format_duration
from kvlab.evaluate.request import EvalJob
from kvlab.jobs.work import Work
from kvlab.model_info.names import check_model
from kvlab.requests.compare import CompareRequest
from kvlab.trace.catalogue import list_comparisons

atlas_commands = typer.Typer(
    help="Fill the figure atlas, and print how many claims of each paper hold.", no_args_is_help=True
)


@atlas_commands.command("fill")
def fill(
    out: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs"),
    only: Annotated[str, typer.Option(help="exhibits, such as keepkv/fig-3,gvote/fig-1; all without it")] = "",
    model: Annotated[str, typer.Option(help="mini, a local folder, or a hub name")] = "mini",
    prompts: Annotated[int, typer.Option(min=1, help="texts to record")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="prompts for each task and length of an evaluation")] = 5,
    length: Annotated[int, typer.Option(min=64, help="tokens of an evaluation's prompt")] = 384,
    minutes: Annotated[float, typer.Option(help="start nothing new after this; run it again to continue")] = 1e9,
) -> None:
    """Measure on a model what the exhibits draw from; what is in the folder already is not measured again.

    Benchmarks time the papers' shapes with random weights, whichever the model.
    """
    from kvlab.atlas.registry import measurements_of
    from kvlab.forms.measurement_job import FillSize, fill_jobs

    measurements = measurements_of(out, [key for key in only.split(",") if key], check_model(model))
    jobs = fill_jobs(measurements, FillSize(prompts, samples, (length,)))
    stop = time.monotonic() + 60 * minutes
    for place, job in enumerate(jobs, 1):
        if time.monotonic() > stop:
            typer.echo(f"{len(jobs) - place + 1} of {len(jobs)} are left: run it again to continue.")
            raise typer.Exit(3)
        begun = time.monotonic()
        title = _run(job, out, stop)
        typer.echo(f"{place} of {len(jobs)}  {title}  {format_duration(time.monotonic() - begun)}")


def _run(work: Work, root: Path, stop: float) -> str:
    """Run the job in this process, as the worker would, and return its title; an evaluation ends at `stop`."""
    from kvlab.jobs.worker import BENCH, COMPARE, EVALUATE, load_function

    root.mkdir(parents=True, exist_ok=True)
    if isinstance(work, CompareRequest):
        runs = len(work.runs)
        found = [entry for entry in list_comparisons(root) if entry.title == work.title and len(entry.runs) == runs]
        if any(entry.status == "complete" and entry.runs[0].model == work.model for entry in found):
            return f"{work.title}, which was there"
        load_function(COMPARE)(work, root)
        return f"{work.title}: {runs} runs"
    assert isinstance(work, EvalJob | BenchJob)
    run = load_function(EVALUATE if isinstance(work, EvalJob) else BENCH)
    run(work, root, progress=lambda progress: None, cancelled=lambda: time.monotonic() > stop)
    return work.title


@atlas_commands.command("ship")
def ship(
    runs: Annotated[Path, typer.Option(help="the folder that was filled")] = Path("runs"),
    to: Annotated[Path, typer.Option(help="the folder of the shipped results")] = Path("assets/results"),
    machine: Annotated[str, typer.Option(help="the machine that measured it")] = "two CPU cores",
    only: Annotated[str, typer.Option(help="exhibits of evaluations to add to what is there, as of `fill`")] = "",
    recorded: Annotated[bool, typer.Option("--recorded", help="replace only what recorded runs show")] = False,
) -> None:
    """Pack a filled folder as the results that ship with kvlab."""
    from kvlab.atlas.shipped_archive import pack, pack_also, pack_recorded

    keys = [key for key in only.split(",") if key]
    size = pack_recorded(runs, to) if recorded else pack_also(runs, to, keys) if keys else pack(runs, to, machine)
    typer.echo(f"{format_bytes(size)} in {to}")


@atlas_commands.command("scores")
def scores(
    runs: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs"),
    as_csv: Annotated[bool, typer.Option("--csv", help="print claim by claim, one column per model, as CSV")] = False,
) -> None:
    """Print how many claims of each paper hold on each model, from the folder and from the shipped results."""
    from kvlab.atlas.cards import scorecard
    from kvlab.atlas.scorecard import claims_by_model, counts
    from kvlab.common.model_title import model_title

    found = scorecard(runs)
    if as_csv:
        typer.echo(claims_by_model(found).to_csv(index=False), nl=False)
        return
    for model, lines in found.items():
        typer.echo(f"on {model_title(model)}")
        for line in counts(lines).itertuples():
            if line.holds + line.fails + line.open:
                typer.echo(f"  {line.title:24} {line.holds} hold, {line.fails} do not, {line.open} undecided")
