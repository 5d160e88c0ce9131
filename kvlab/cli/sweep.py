"""`kvlab sweep plan | run | work | status`: an evaluation on many GPUs and machines that share a folder."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli.eval import evaluate, request_from
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.prefix import PrefixOptions
from kvlab.cli.options.signature import KEYWORD, Command, parameters_of, with_parameters, with_plugins
from kvlab.cli.options.tables import print_summary
from kvlab.common.terminal import standard_error
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob

sweep_commands = typer.Typer(help="An evaluation on many GPUs and machines that share a folder.", no_args_is_help=True)

LEASE_SECONDS = 60.0
BLOCK = 32
# Options of `kvlab eval` on output, papers' tables, kept prefixes and the machine that the command runs on.
EVAL_ONLY = ("out", "as_json", "preset", "table", "figure", "force", *(field.name for field in fields(PrefixOptions)))
Folder = Annotated[Path, typer.Argument(help="the sweep's folder; the dashboard reads runs/eval/NAME")]
LeaseSeconds = Annotated[float, typer.Option(min=1, help="a worker that is silent for so many seconds loses its shard")]


def with_eval_options(command: Command) -> Command:
    """Add the options of `kvlab eval` that say what to measure; the command receives them as `eval_options`."""
    own = [option for option in parameters_of(command) if option.name != "eval_options"]
    more = [option for option in parameters_of(evaluate) if option.name not in EVAL_ONLY]

    def merged(**values: Any) -> None:
        command(**{option.name: values.pop(option.name) for option in own}, eval_options=values)

    return with_parameters(merged, command, [option.replace(kind=KEYWORD) for option in (*own, *more)])


@sweep_commands.command("plan")
@with_plugins
@with_eval_options
def plan(
    folder: Folder,
    eval_options: dict[str, Any],
    block: Annotated[
        int, typer.Option(help="most prompts per shard; smaller blocks give more shards, for more workers")
    ] = BLOCK,
) -> None:
    """Cut an evaluation into shards and write the plan; --model takes several models, separated by commas.

    A shard is a block of prompts with all methods and budgets. Reads tokenizers and configs, not weights.
    """
    from kvlab.sweep.planning import make_sweep
    from kvlab.sweep.shards import write_plan
    from kvlab.sweep.status import read_status

    models = [name.strip() for name in eval_options.pop("model").split(",") if name.strip()]
    requests = [request_from(model=model, **eval_options).with_absolute_paths() for model in dict.fromkeys(models)]
    sweep, notes = make_sweep(requests, block)
    write_plan(folder, sweep)
    for note in notes:
        typer.echo(note, err=True)
    shards = f"{len(sweep.shards)} shard{'' if len(sweep.shards) == 1 else 's'} of at most {block} prompts"
    typer.echo(f"{shards}, {sweep.num_rows} rows; {read_status(folder).measured} of the shards measured.")
    typer.echo(f"Next: kvlab sweep run {folder}")


@sweep_commands.command("run")
@with_plugins
def run(
    folder: Folder,
    on: Annotated[str, typer.Option(help="local, slurm or ray")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="default: one per GPU; 4 under Slurm")] = None,
    slurm: Annotated[
        list[str] | None, typer.Option(help="an option of sbatch, such as partition=gpu, time=240 or mem=64G")
    ] = None,
    address: Annotated[str | None, typer.Option(help="a running Ray cluster; default: start one here")] = None,
    lease_seconds: LeaseSeconds = LEASE_SECONDS,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Start workers, report their progress and print the table. Shards and methods that were given up are tried again.

    Workers on this machine are not started if the plan does not fit its memory.
    """
    from kvlab.sweep.shards import read_plan, sweep_rows, try_again
    from kvlab.sweep.status import read_status

    requests = read_plan(folder).requests
    if on not in ("local", "slurm", "ray"):
        raise UserError(f"--on takes local, slurm or ray, not {on!r}.")
    if on == "local" and not force:
        for request in requests:
            check_fits(EvalJob(name="asked", request=request), folder)
    _exit_on_sigterm()  # so that local workers are stopped too
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
    notes = read_status(folder).notes
    for note in notes:
        say(note)
    print_summary(sweep_rows(folder), notes, folder, as_json, any(request.depths for request in requests))


@sweep_commands.command("work")
@with_plugins
def work(folder: Folder, lease_seconds: LeaseSeconds = LEASE_SECONDS) -> None:
    """Run one worker in this process until no shard is left; start any number, on any machine that sees the folder."""
    from kvlab.sweep.worker import Worker

    _exit_on_sigterm()  # so that the shard is released
    worker = Worker(folder, lease_seconds, say=lambda line: print(line, flush=True))
    print(f"{worker.holder.worker} (process {os.getpid()})", flush=True)
    worker.work()


@sweep_commands.command("status")
def status(folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False) -> None:
    """Print the progress of a sweep, read from its files."""
    from kvlab.sweep.status import read_status

    now = read_status(folder)
    if as_json:
        workers = [vars(worker) for worker in now.workers]
        counts = {"planned": now.planned, "there": now.measured, "left": now.left, "lost": now.lost}
        reasons = {"failed": now.failed, "given_up": now.given_up}
        typer.echo(json.dumps({**counts, **reasons, "workers": workers}, indent=2))
        return
    typer.echo(now.summary)
    for line in [*now.notes, *now.errors]:
        typer.echo(line)


def _exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that `finally` blocks run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _slurm_options(texts: list[str]) -> dict[str, Any]:
    """Parse `name=value` options, integers as int; raises UserError for anything else."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.replace("_", "").replace("-", "").isalnum() or not value:
            raise UserError(f"--slurm takes name=value, such as partition=gpu, not {text!r}.")
        options[name.replace("-", "_")] = int(value) if value.isdigit() else value
    return options
