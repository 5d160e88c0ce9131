"""The `kvlab` command: one file per subcommand, one-sentence errors, exit status 2 for bad input."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from kvlab.cli.app import app_command
from kvlab.cli.atlas import atlas_commands
from kvlab.cli.bench import bench
from kvlab.cli.chat import chat
from kvlab.cli.compare import compare, run
from kvlab.cli.data import data_commands
from kvlab.cli.doctor import doctor
from kvlab.cli.eval import evaluate
from kvlab.cli.fit import fit, profile, train_less
from kvlab.cli.lm_eval import lm_eval
from kvlab.cli.methods import methods
from kvlab.cli.models import models_commands
from kvlab.cli.options.signature import with_plugins
from kvlab.cli.options.tables import table
from kvlab.cli.plan import plan
from kvlab.cli.plugin import plugin_commands
from kvlab.cli.prefix import prefix_commands
from kvlab.cli.prompts import prompts_commands
from kvlab.cli.report import report
from kvlab.cli.restore import restore
from kvlab.cli.runs import runs_commands
from kvlab.cli.safe_budget import safe_budget
from kvlab.cli.serve_check import serve_check
from kvlab.cli.tasks import tasks
from kvlab.cli.train_mini import train_mini
from kvlab.core.errors import UserError
from kvlab.core.validation import check_text, quote_value


def _hide_type_of_switches() -> None:
    """Show no `<bool>` beside a switch in --help: it takes no value, so that `--headless true` fails."""
    display_type = TyperOption.display_type

    def display_type_of_values(option: TyperOption, ctx: Any) -> str:
        return "" if option.is_flag else display_type(option, ctx)

    TyperOption.display_type = display_type_of_values  # type: ignore[method-assign, assignment]


if hasattr(TyperOption, "display_type"):  # older versions show none
    _hide_type_of_switches()

GROUP = "kvlab.commands"  # entry points of packages that add commands, each a function or a Typer application
EXTRAS = (
    EntryPoint("vllm", "kvlab.extras.vllm.command:vllm", GROUP),
    EntryPoint("openvino", "kvlab.extras.engines.command:openvino", GROUP),
)


class CommandGroup(TyperGroup):
    """kvlab's commands, and those of `EXTRAS` and of installed packages, which are imported when they are asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.added: list[EntryPoint] = []

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name; a command that cannot be added is left out, with a sentence on standard error."""
        for point in (*EXTRAS, *entry_points(group=GROUP)):
            try:
                self._add(point)
            except UserError as error:
                print(f"kvlab: {error}", file=sys.stderr)
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None if nothing has that name; raises UserError if it cannot be added."""
        if cmd_name not in self.commands:
            for point in (*EXTRAS, *entry_points(group=GROUP)):
                if point.name == cmd_name:
                    self._add(point)
                    break
        return super().get_command(ctx, cmd_name)

    def _add(self, point: EntryPoint) -> None:
        if point in self.added:
            return
        name = f"The command {quote_value(point.name)} of {point.dist.name if point.dist else 'kvlab'}"
        if point.name in self.commands:
            raise UserError(f"{name} is left out: another one has that name.")
        around = typer.Typer(add_completion=False)
        around.callback()(lambda: None)  # so that it is a group, even of one command
        try:
            command = point.load()
            if isinstance(command, typer.Typer):
                around.add_typer(command, name=point.name)
            else:
                around.command(point.name)(with_plugins(command))
            made: Any = typer.main.get_command(around)
        except (Exception, SystemExit) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"{name} cannot be loaded; mend or remove its package ({why}).") from error
        self.commands[point.name] = made.commands[point.name]
        self.added.append(point)


commands = typer.Typer(
    cls=CommandGroup,
    help="A visual laboratory for KV-cache compression in LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
commands.command("methods")(with_plugins(methods))
commands.command("tasks")(with_plugins(tasks))
commands.command("run")(with_plugins(run))
commands.command("compare")(with_plugins(compare))
commands.command("chat")(with_plugins(chat))
commands.command("restore")(with_plugins(restore))
commands.command("plan")(with_plugins(plan))
commands.command("serve-check")(with_plugins(serve_check))
commands.command("eval")(with_plugins(evaluate))
commands.command("safe-budget")(with_plugins(safe_budget))
commands.command("lm-eval")(with_plugins(lm_eval))
commands.command("table")(with_plugins(table))
commands.command("bench")(with_plugins(bench))
commands.command("app")(with_plugins(app_command))
commands.command("doctor")(with_plugins(doctor))
commands.command("train-mini")(with_plugins(train_mini))
commands.command("fit")(with_plugins(fit))
commands.command("profile")(with_plugins(profile))
commands.command("train-less")(with_plugins(train_less))
commands.command("report")(report)
commands.add_typer(models_commands, name="models")
commands.add_typer(runs_commands, name="runs")
commands.add_typer(prompts_commands, name="prompts")
commands.add_typer(prefix_commands, name="prefix")
commands.add_typer(plugin_commands, name="plugin")
commands.add_typer(atlas_commands, name="atlas")
commands.add_typer(data_commands, name="data")


def main() -> None:
    """Run the command line; a UserError becomes one sentence on standard error."""
    try:
        for word in sys.argv[1:]:
            check_text(word, "An argument")
        commands()
    except UserError as error:
        print(f"kvlab: {error}", file=sys.stderr)
        sys.exit(2)
