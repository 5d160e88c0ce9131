"""The `kvlab` command: one file a subcommand, errors in one sentence, exit status 2 for bad input."""

from __future__ import annotations

import sys

import typer

from kvlab.cli.app import app_command
from kvlab.cli.bench import bench
from kvlab.cli.compare import compare, run
from kvlab.cli.doctor import doctor
from kvlab.cli.eval import evaluate
from kvlab.cli.killed import killed
from kvlab.cli.methods import methods
from kvlab.cli.plan import plan
from kvlab.cli.train_less import train_less
from kvlab.cli.train_mini import train_mini
from kvlab.errors import UserError

commands = typer.Typer(
    help="A visual laboratory for KV-cache compression in LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
commands.command("methods")(methods)
commands.command("run")(run)
commands.command("compare")(compare)
commands.command("killed")(killed)
commands.command("plan")(plan)
commands.command("eval")(evaluate)
commands.command("bench")(bench)
commands.command("app")(app_command)
commands.command("doctor")(doctor)
commands.command("train-mini")(train_mini)
commands.command("train-less")(train_less)


def main() -> None:
    """Run the command line; a UserError becomes one sentence on standard error."""
    try:
        commands()
    except UserError as error:
        print(f"kvlab: {error}", file=sys.stderr)
        sys.exit(2)
