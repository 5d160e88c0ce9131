"""The `kvlab` command: one file per subcommand, one-sentence errors, exit status 2 for bad input."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from kvlab.cli.options.signature import with_plugins
from kvlab.cli.replacements import replacement
from kvlab.core import UserError, check_text, quote_value

# Show no `<bool>` beside a switch in --help: it takes no value, so that `--headless true` fails.
if hasattr(TyperOption, "display_type"):  # older versions show none
    display_type = TyperOption.display_type
    TyperOption.display_type = lambda option, ctx: "" if option.is_flag else display_type(option, ctx)  # type: ignore[method-assign, assignment, attr-defined]

GROUP = "kvlab.commands"  # entry points of packages that add commands, each a function or a Typer application
# Where each command is and its line in `kvlab --help`, in this order; a command is imported when it is asked for.
COMMANDS = {
    "compare": ("compare:compare", "Compare methods and budgets with the full cache on prompts."),
    "live": ("live:live", "Read a text once, and answer questions in all caches side by side."),
    "view": ("view:view", "Draw one view of a run or comparison as picture, page or table."),
    "restore": ("restore:restore", "Find what a wrong run would have had to keep."),
    "eval": ("eval:evaluate", "Score compressed caches against the full cache on the same prompts."),
    "safe-budget": ("safe_budget:safe_budget", "Find the smallest budget that is safe on your prompts."),
    "lm-eval": ("lm_eval:lm_eval", "Score compressed caches on tasks of lm-eval."),
    "table": ("table:table", "Write a table of scores, with intervals."),
    "bench": ("bench:bench", "Measure memory and speed of compressed caches."),
    "plan": ("plan:plan", "Count what a comparison holds in memory, and whether that fits."),
    "app": ("app:app_command", "Open the dashboard; its jobs run in a worker process."),
    "runs": ("runs:runs_commands", "List, find, label, delete, export and import runs."),
    "report": ("report:report", "Export a comparison or a story as HTML, PPTX or PDF, or a run as GIF."),
    "atlas": ("atlas:atlas_commands", "Print how many claims of each paper hold, model by model."),
    "methods": ("methods:methods", "List the methods with their parts, or one method's presets."),
    "tasks": ("tasks:tasks", "List tasks and file formats, or check a file."),
    "models": ("models:models_commands", "List the models on this machine, or download one."),
    "prompts": ("prompts:prompts_commands", "Save prompts under a name, list, print and remove them."),
    "prefix": ("prefix:prefix_commands", "Read a text once, keep it compressed in a file, and ask it many questions."),
    "fit": ("fit:fit", "Fit what a method has to learn about a model."),
    "plugin": ("plugin:plugin_commands", "Write and check methods, tasks, metrics and views of your own."),
    "watch": ("watch:watch_commands", "Record what a foreign KV cache holds, and hold it against a method."),
    "serve-check": ("serve_check:serve_check", "Say what a serving engine would have to hold for a method."),
    "doctor": ("doctor:doctor", "Report versions, devices and memory, and test a cache; or check recorded runs."),
}
WITHOUT_PLUGINS = ("report",)


class CommandGroup(TyperGroup):
    """kvlab's commands, and those of installed packages, which are imported when they are asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.added: list[EntryPoint] = []
        self.only_lines = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands by their lines, without importing them."""
        self.only_lines = True
        super().format_help(ctx, formatter)
        self.only_lines = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name; a package's command that cannot be added is left out, with a sentence on standard error."""
        for point in entry_points(group=GROUP):
            try:
                self._add(point)
            except UserError as error:
                print(f"kvlab: {error}", file=sys.stderr)
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None if nothing has that name; raises UserError if it cannot be added, or was replaced."""
        if cmd_name in COMMANDS:
            place, line = COMMANDS[cmd_name]
            if self.only_lines:
                return TyperCommand(cmd_name, help=line)
            self._add(EntryPoint(cmd_name, f"kvlab.cli.{place}", GROUP))
        elif cmd_name not in self.commands:
            for point in entry_points(group=GROUP):
                if point.name == cmd_name:
                    self._add(point)
                    break
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raises UserError for a replaced command or option, with what to use now.

        An option that is a setting now is taken as one, with that sentence on standard error.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            now = replacement(error)
            if not now:
                raise
            option = getattr(error, "option_name", "")
            if not now.startswith(f"{option} is now `--set ") or option not in sys.argv[:-1]:
                raise UserError(now) from None
            place = sys.argv.index(option)
            setting = f"{option.removeprefix('--')}={sys.argv[place + 1]}"
            print(f"kvlab: {now}", file=sys.stderr)
        sys.argv[place : place + 2] = ["--set", setting]
        return self.main(sys.argv[1:], standalone_mode=False)

    def _add(self, point: EntryPoint) -> None:
        if point in self.added:
            return
        name = f"The command {quote_value(point.name)} of {point.dist.name if point.dist else 'kvlab'}"
        is_own = point.dist is None
        if point.name in self.commands or (point.name in COMMANDS and not is_own):
            raise UserError(f"{name} is left out: another one has that name.")
        around = typer.Typer(add_completion=False)
        around.callback()(lambda: None)  # so that it is a group, even of one command
        try:
            command = point.load()
            if isinstance(command, typer.Typer):
                around.add_typer(command, name=point.name)
            else:
                around.command(point.name)(command if point.name in WITHOUT_PLUGINS else with_plugins(command))
            made: Any = typer.main.get_command(around)
        except (Exception, SystemExit) as error:
            if is_own:
                raise
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
commands.callback()(lambda: None)  # a group without a command of its own


def run_alone(command: Callable[..., None]) -> None:
    """Run one command that is a module of its own, as `main` runs kvlab's."""
    around = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    around.command()(with_plugins(command))
    main(around)


def main(application: typer.Typer = commands) -> None:
    """Run the command line; a UserError becomes one sentence on standard error."""
    try:
        for word in sys.argv[1:]:
            check_text(word, "An argument")
        application()
    except UserError as error:
        print(f"kvlab: {error}", file=sys.stderr)
        sys.exit(2)
