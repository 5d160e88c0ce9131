"""`kvlab sweep plan | run | work | status`: distribute an evaluation over GPUs and machines that share a folder."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli.eval import evaluate, request_from
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.plugins import with_plugins
from kvlab.common.errors import UserError

sweep_commands = typer.Typer(
    help="Distribute an evaluation over GPUs and machines that share a folder.", no_args_is_help=True
)

LEASE_SECONDS = 60.0
BLOCK = 32
# Options of `kvlab eval` about outputs, papers' tables and the local machine.
ONLY_EVALS = ("out", "as_json", "preset", "table", "figure", "force")
Folder = Annotated[Path, typer.Argument(help="the sweep's folder; the dashboard reads runs/eval/NAME")]
LeaseSeconds = Annotated[float, typer.Option(min=1, help="a silent worker loses its shard after this time")]


def like_eval(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `kvlab eval` that define the measurement to a command, passed to it as `options`."""
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "options"]
    theirs = inspect.signature(evaluate, eval_str=True).parameters.values()
    merged = [*own, *(one for one in theirs if one.name not in ONLY_EVALS)]

    def filled(**values: Any) -> None:
        command(**{one.name: values.pop(one.name) for one in own}, options=values)

    filled.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in merged]
    )
    filled.__annotations__ = {one.name: one.annotation for one in merged}
    filled.__name__, filled.__doc__ = command.__name__, command.__doc__
    return filled


@sweep_commands.command("plan")
@with_plugins
@like_eval
def plan(
    folder: Folder,
    options: dict[str, Any],
    block: Annotated[int, typer.Option(help="most prompts per shard, the work lost with a worker")] = BLOCK,
) -> None:
    """Plan an evaluation as shards; --model takes several models, comma-separated.

    Reads tokenizers and configs, not weights.
    """
    from kvlab.sweep.planning import make_sweep
    from kvlab.sweep.shards import write_plan
    from kvlab.sweep.state import state

    models = [name.strip() for name in options.pop("model").split(",") if name.strip()]
    requests = [request_from(model=model, **options).with_absolute_paths() for model in dict.fromkeys(models)]
    made, notes = make_sweep(requests, block)
    write_plan(folder, made)
    for note in notes:
        typer.echo(note, err=True)
    rows = sum(shard.stop - shard.start for shard in made.shards)
    typer.echo(f"{len(made.shards)} shards of at most {block} prompts, {rows} rows; {state(folder).there} are there.")
    typer.echo(f"Now: kvlab sweep run {folder}")


@sweep_commands.command("run")
@with_plugins
def run(
    folder: Folder,
    on: Annotated[str, typer.Option(help="local, slurm or ray")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="default: one per GPU; with Slurm 4")] = None,
    slurm: Annotated[
        list[str] | None, typer.Option(help="an option of sbatch, such as partition=gpu, time=240 or mem=64G")
    ] = None,
    address: Annotated[str | None, typer.Option(help="a running Ray cluster; default: start one here")] = None,
    lease_seconds: LeaseSeconds = LEASE_SECONDS,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Start workers, follow them, and print the table. Shards given up before are tried again.

    Work too big for a worker of this machine is refused.
    """
    from kvlab.cli.options.tables import print_summary
    from kvlab.common.terminal import standard_error
    from kvlab.evaluate.request import EvalJob
    from kvlab.sweep.shards import read_plan, sweep_rows, try_again
    from kvlab.sweep.state import state

    requests = read_plan(folder).requests
    if on not in ("local", "slurm", "ray"):
        raise UserError(f"--on takes local, slurm or ray, not {on!r}.")
    if on == "local" and not force:
        for request in requests:
            check_fits(EvalJob(name="request", request=request), folder)
    _exit_on_sigterm()  # so that local workers end with it
    errors = standard_error()

    def say(line: str) -> None:
        errors.print(line, highlight=False, soft_wrap=True)

    for line in try_again(folder):
        say(line)
    if on == "local":
        from kvlab.sweep.local import run_local

        run_local(folder, workers, say, lease_seconds)
    elif on == "slurm":
        from kvlab.sweep.slurm import run_slurm

        run_slurm(folder, workers or 4, _slurm_options(slurm or []), say, lease_seconds)
    else:
        from kvlab.sweep.on_ray import run_ray

        run_ray(folder, workers, address, say, lease_seconds)
    notes = list(state(folder).given_up.values())
    for note in notes:
        say(f"Given up: {note}")
    print_summary(sweep_rows(folder), notes, folder, as_json, any(one.depths for one in requests))


@sweep_commands.command("work")
@with_plugins
def work(folder: Folder, lease_seconds: LeaseSeconds = LEASE_SECONDS) -> None:
    """Work in this process until no shard is left; start any number of workers on machines that see the folder."""
    from kvlab.sweep.worker import Worker

    _exit_on_sigterm()  # so that the shard is released
    worker = Worker(folder, lease_seconds, say=lambda line: print(line, flush=True))
    print(f"{worker.holder.worker} (process {os.getpid()})", flush=True)
    worker.work()


@sweep_commands.command("status")
def status(folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False) -> None:
    """Show a sweep's progress, read from its files."""
    from kvlab.sweep.state import state

    now = state(folder)
    if as_json:
        workers = [vars(worker) for worker in now.workers]
        counts = {"planned": now.planned, "there": now.there, "left": now.left, "lost": now.lost}
        typer.echo(json.dumps({**counts, "given_up": now.given_up, "workers": workers}, indent=2))
        return
    typer.echo(now.words)
    for line in [*(f"Given up: {note}" for note in now.given_up.values()), *now.refusals]:
        typer.echo(line)


def _exit_on_sigterm() -> None:
    """Turn SIGTERM into a normal exit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _slurm_options(texts: list[str]) -> dict[str, Any]:
    """Parse `name=value` texts, whole numbers as int. Raises UserError for anything else."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.replace("_", "").replace("-", "").isalnum() or not value:
            raise UserError(f"--slurm takes name=value, such as partition=gpu, not {text!r}.")
        options[name.replace("-", "_")] = int(value) if value.isdigit() else value
    return options
