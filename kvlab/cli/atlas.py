"""`kvlab atlas` prints the scorecard; `python -m kvlab.cli.atlas` fills the atlas and packs it for shipping."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kvlab.bench.request import BenchJob
from kvlab.common.formatting import format_bytes, format_duration
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.jobs.work import Work
from kvlab.models.info.names import check_model
from kvlab.requests.compare import CompareRequest
from kvlab.trace.catalogue import list_comparisons

NAME_WIDTH = 22
COUNTS_WIDTH = len("12 hold, 2 do not, 12 undecided")
atlas_commands = typer.Typer(help="Print how many claims of each paper hold.", no_args_is_help=True)
atlas_tools = typer.Typer(
    help="Measure what the papers' figures draw from, and pack it for shipping.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@atlas_tools.command("fill")
def fill(
    out: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs"),
    only: Annotated[str, typer.Option(help="exhibits, such as keepkv/fig-3,gvote/fig-1; all without it")] = "",
    model: Annotated[str, typer.Option(help="mini, a local folder, or a hub name")] = "mini",
    prompts: Annotated[int, typer.Option(min=1, help="texts to record")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="prompts for each task and length of an evaluation")] = 5,
    length: Annotated[int, typer.Option(min=64, help="tokens of an evaluation's prompt")] = 384,
    minutes: Annotated[float, typer.Option(help="start nothing new after this; run it again to continue")] = 1e9,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print each job and its size; measure nothing")] = False,
) -> None:
    """Measure on a model what the exhibits draw from; what is in the folder already is not measured again.

    Methods that the model refuses are left out, as LESS without maps fitted to it; so are tasks that do not fit the
    length, and a job that cannot run.
    Benchmarks time the papers' shapes with random weights, whichever the model.
    """
    from kvlab.forms.measurement_job import FillSize, fill_jobs
    from kvlab.papers.registry import measurements_of

    measurements = measurements_of(out, [key for key in only.split(",") if key], check_model(model))
    jobs = fill_jobs(measurements, FillSize(prompts, samples, (length,)))
    if dry_run:
        from kvlab.jobs.size_check import prompt_lengths
        from kvlab.planning.choices import task_list

        for place, job in enumerate(jobs, 1):
            size = "a benchmark"
            if isinstance(job, CompareRequest):
                size = "is there" if _is_there(job, out) else f"{len(job.runs)} runs"
            elif isinstance(job, EvalJob):
                lengths = prompt_lengths(job.request, task_list())
                size = f"{len(lengths):,} prompts under {len(job.request.all_choices)} caches"
            typer.echo(f"{place} of {len(jobs)}  {job.title}  {size}")
        return
    stop = time.monotonic() + 60 * minutes
    failed = 0
    for place, job in enumerate(jobs, 1):
        if time.monotonic() > stop:
            typer.echo(f"{len(jobs) - place + 1} of {len(jobs)} are left: run it again to continue.")
            raise typer.Exit(3)
        begun = time.monotonic()
        try:
            words = _run_able(job, out, stop)
        except UserError as error:
            failed = failed + 1
            words = f"{job.title} is left out: {error}"
        typer.echo(f"{place} of {len(jobs)}  {words}  {format_duration(time.monotonic() - begun)}")
    if failed:
        typer.echo(f"{failed} of {len(jobs)} could not be measured.")
        raise typer.Exit(1)


def _is_there(work: CompareRequest, root: Path) -> bool:
    """Whether the folder has the finished comparison of this title and model with as many runs."""
    found = (one for one in list_comparisons(root) if one.title == work.title and len(one.runs) == len(work.runs))
    return any(one.status == "complete" and one.runs[0].model == work.model for one in found)


def _run_able(work: Work, root: Path, stop: float) -> str:
    """`_run`, again without the methods and tasks that the model refuses if it refuses any."""
    try:
        return _run(work, root, stop)
    except UserError:
        from kvlab.evaluation.harness import without_refused

        again: Work = work
        names: tuple[str, ...] = ()
        if isinstance(work, CompareRequest):
            again, names = without_refused(work)
        elif isinstance(work, EvalJob):
            request, names = without_refused(work.request)
            again = work.model_copy(update={"request": request})
        if not names:
            raise
    return f"{_run(again, root, stop)}, without {', '.join(names)}, which the model refuses"


def _run(work: Work, root: Path, stop: float) -> str:
    """Run the job in this process, as the worker would, and return its title; an evaluation ends at `stop`."""
    from kvlab.jobs.worker import BENCH, COMPARE, EVALUATE, load_function

    root.mkdir(parents=True, exist_ok=True)
    if isinstance(work, CompareRequest):
        if _is_there(work, root):
            return f"{work.title}, which was there"
        load_function(COMPARE)(work, root)
        return f"{work.title}: {len(work.runs)} runs"
    assert isinstance(work, EvalJob | BenchJob)
    run = load_function(EVALUATE if isinstance(work, EvalJob) else BENCH)
    run(work, root, progress=lambda progress: None, cancelled=lambda: time.monotonic() > stop)
    return work.title


@atlas_tools.command("ship")
def ship(
    runs: Annotated[Path, typer.Option(help="the folder that was filled")] = Path("runs"),
    to: Annotated[
        Path, typer.Option(help="the folder of the shipped results; of another model assets/results/models/NAME")
    ] = Path("assets/results"),
    machine: Annotated[str, typer.Option(help="the machine that measured it")] = "two CPU cores",
    only: Annotated[str, typer.Option(help="exhibits of evaluations to add to what is there, as of `fill`")] = "",
    model: Annotated[str, typer.Option(help="the model, if the folder has data of several")] = "",
    recorded: Annotated[bool, typer.Option("--recorded", help="replace only what recorded runs show")] = False,
) -> None:
    """Pack a filled folder as the results of one model that ship with kvlab; exhibits without data are left out."""
    from kvlab.papers.shipped_archive import pack, pack_also, pack_recorded

    keys = [key for key in only.split(",") if key]
    if recorded or keys:
        size = pack_recorded(runs, to) if recorded else pack_also(runs, to, keys)
        typer.echo(f"{format_bytes(size)} in {to}")
        return
    packed = pack(runs, to, machine, model)
    typer.echo(f"{packed.exhibits} exhibits, {format_bytes(packed.size)} in {to}")
    if packed.left_out:
        typer.echo(f"Left out, because nothing was measured for them: {', '.join(packed.left_out)}.")


@atlas_commands.command("scores")
def scores(
    runs: Annotated[Path, typer.Option(help="the folder of runs")] = Path("runs"),
    as_csv: Annotated[bool, typer.Option("--csv", help="print claim by claim, one column per model, as CSV")] = False,
) -> None:
    """Print how many claims of each paper hold, a column per model, from the folder and from the shipped results."""
    from kvlab.common.formatting import model_title
    from kvlab.papers.registry import PAPERS
    from kvlab.papers.scorecard import claims_by_model, counts, scorecard

    found = scorecard(runs)
    if as_csv:
        typer.echo(claims_by_model(found).to_csv(index=False), nl=False)
        return
    titles = [model_title(model) for model in found]
    widths = [NAME_WIDTH, *(max(COUNTS_WIDTH, len(title)) for title in titles)]
    columns = [
        [
            f"{line.holds} hold, {line.fails} do not, {line.open} undecided"
            if line.holds + line.fails + line.open
            else "-"  # a paper without a claim
            for line in counts(lines).itertuples()
        ]
        for lines in found.values()
    ]
    for row in (("", *titles), *zip(PAPERS.values(), *columns, strict=True)):
        typer.echo("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    from kvlab.cli import main

    main(atlas_tools)
