"""`kvlab live`: talk to the full and to compressed caches side by side about one text."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.prompt import PromptOptions
from kvlab.cli.options.signature import group_parameters
from kvlab.common.atomic_write import replace_file
from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.terminal import standard_error, standard_output, without_controls
from kvlab.core import UserError, as_option, in_one_sentence
from kvlab.requests.compare import ModelRequest

if TYPE_CHECKING:
    from kvlab.live.answers import Sampling
    from kvlab.live.events import Event
    from kvlab.live.job import SessionReporter
    from kvlab.live.session import LiveSession

COMMANDS = "/again answers once more, /restart begins anew, /budget 0.1 changes all budgets, /quit ends"
SHADES = ((1.0, "red"), (0.1, "dark_orange"), (0.01, "yellow"))  # least KL in nats, and its colour
PIPED_WIDTH = 160


@group_parameters
def live(
    text: PromptOptions,
    model: ModelOptions,
    methods: Annotated[str, typer.Option(help="such as snapkv,keepkv:preset=paper")] = "snapkv,keepkv,exactmerge2",
    budgets: Annotated[str, typer.Option(help="fractions of the context, slots per KV head, or bytes")] = "0.2",
    question: Annotated[list[str] | None, typer.Option(help="ask this and end; repeatable: a conversation")] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0: the likeliest token")] = 0.0,
    seed: Annotated[int, typer.Option(help="seed of sampling and of random methods")] = 0,
    replay: Annotated[
        Path | None, typer.Option(help="FILE.html or .gif: the conversation, to play without a server")
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            help="open a kept prefix (`kvlab prefix ls`) instead of reading a text; repeatable: a branch each"
        ),
    ] = None,
    root: Annotated[Path, typer.Option("--runs", help="the folder of runs, next to which prefixes are")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="print every event as a line of JSON")] = False,
) -> None:
    """Read a text once, compress it with several methods, and answer questions in all caches side by side.

    Words are shaded by the KL of a branch's prediction from the full cache's, as long as their texts agree; the word at
    which a text leaves the full cache's is underlined.
    """
    from kvlab.core.methods.spec import parse_choices
    from kvlab.live.answers import Sampling
    from kvlab.live.job import SessionReporter
    from kvlab.live.session import LiveSession
    from kvlab.models.chat import chat_of
    from kvlab.models.load import held_model
    from kvlab.tasks.shipped_samples import shipped_sample

    if replay is not None and replay.suffix not in (".html", ".gif"):
        raise UserError(f"A replay is an HTML or GIF file: end {replay.name!r} with .html or .gif.")
    if prefix:
        from kvlab.library.prefixes import live_request
        from kvlab.live.session import PrefixSession

        if text.given:
            raise UserError("A prefix has its text: leave the prompt out, or leave out --prefix.")
        elsewhere = "" if model.model == ModelOptions.model else model.model
        kept = live_request(root, prefix, elsewhere, model.device, model.cache_dir, seed)
        session: LiveSession = PrefixSession.of_request(kept, root, held_model(kept))
    else:
        context = text.read()
        if text.sample is not None:  # its question is asked in the conversation
            context = shipped_sample(Path(text.sample).stem).context
        choices = parse_choices(methods, budgets)
        try:
            request = ModelRequest(**asdict(model))
        except ValidationError as error:
            raise UserError(in_one_sentence(error, as_option)) from None
        loaded = held_model(request)
        session = LiveSession(loaded, context, choices, chat_of(request, loaded.tokenizer), seed)
    events: list[dict[str, Any]] = []
    reporter = SessionReporter(session, events.append)
    screen = Screen(session, began="opened and verified" if prefix else "read and compressed", as_json=as_json)
    talk = Talk(reporter, Sampling(temperature, seed, new_tokens), screen.show)
    talk.follow(session.read_context())
    try:
        if question:
            for one in question:
                talk.ask(one)
        else:
            talk.read_questions()
    finally:
        if replay is not None:
            from kvlab.report import live_replay

            title = f"{model_title(session.loaded.name)}: {textwrap.shorten(session.context, 60)}"
            is_gif = replay.suffix == ".gif"
            page = live_replay.live_gif(events, title) if is_gif else live_replay.replay(events, title).encode()
            replace_file(replay, lambda temporary: temporary.write_bytes(page))
            typer.echo(f"{replay}: {format_bytes(len(page))}", err=True)


@dataclass
class Talk:
    """A conversation in the terminal."""

    reporter: SessionReporter
    sampling: Sampling
    show: Callable[[Iterator[Event]], None]

    def follow(self, events: Iterator[Event]) -> None:
        """Show events; Ctrl-C ends the answers, not the conversation."""
        before = signal.signal(signal.SIGINT, lambda *_: self.reporter.session.stop())
        try:
            self.show(self.reporter.follow(events))
        finally:
            signal.signal(signal.SIGINT, before)

    def ask(self, question: str) -> None:
        """Answer a question in all branches."""
        self.reporter.question(question)
        self.follow(self.reporter.session.ask(question, self.sampling))

    def read_questions(self) -> None:
        """Read questions and commands from standard input until its end or `/quit`."""
        from kvlab.core.methods.spec import parse_choices

        session = self.reporter.session
        typer.echo(COMMANDS, err=True)
        while True:
            typer.echo("> ", err=True, nl=False)
            line = sys.stdin.readline()
            if not line or line.strip() == "/quit":
                return
            command, _, value = line.strip().partition(" ")
            try:
                if command == "/again":
                    if not session.history:
                        raise UserError("Nothing was asked yet.")
                    question = session.history[-1].question
                    self.go_back(session.turn - 1)
                    self.ask(question)
                elif command == "/restart":
                    self.go_back(0)
                elif command == "/budget":
                    # Compress the context again in every branch but the full cache's; the conversation begins again.
                    budget = parse_choices("h2o", value)[0].budget
                    session.go_back(0)
                    for number, branch in enumerate(session.branches[1:], 1):
                        changed = branch.choice.model_copy(update={"budget": budget})
                        self.follow(session.change_branch(number, changed))
                    self.reporter.tell({"kind": "went_back", "turn": 0})
                elif command.startswith("/"):
                    raise UserError(f"There is no command {command}: {COMMANDS}.")
                elif command:
                    self.ask(line.strip())
            except UserError as error:
                typer.echo(str(error), err=True)

    def go_back(self, turn: int) -> None:
        """Return to the state before a question."""
        self.reporter.session.go_back(turn)
        self.reporter.tell({"kind": "went_back", "turn": turn})


@dataclass
class Screen:
    """The branches as columns, redrawn with every token; without a terminal, the answers when they are complete.

    With `as_json` every event as a line of JSON instead.
    """

    session: LiveSession
    console: Console = field(default_factory=lambda: standard_output(PIPED_WIDTH))
    began: str = "read and compressed"
    as_json: bool = False
    heads: dict[int, str] = field(default_factory=dict)
    answers: dict[int, Text] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)

    def show(self, events: Iterator[Event]) -> None:
        """Follow events until they end."""
        self.answers = {}
        self.notes = {}
        if self.as_json:
            for event in events:
                typer.echo(json.dumps(event.as_json(), ensure_ascii=False))
        elif self.console.is_terminal:
            with Live(console=self.console, auto_refresh=False) as live:
                for event in events:
                    self.note(event)
                    live.update(self.table(), refresh=True)
        else:
            for event in events:
                self.note(event)
            if self.answers:
                self.console.print(self.table())

    def note(self, event: Event) -> None:
        """Take over an event."""
        from kvlab.live.events import AnswerEnded, BranchFailed, BranchSettled, ContextRead, TokenWritten

        match event:
            case ContextRead():
                line = f"{event.tokens:,} tokens {self.began} in {event.seconds:.1f} s"
                standard_error().print(line)
            case BranchSettled():
                share = 100 * event.live_bytes / event.full_bytes
                self.heads[event.branch] = f"{event.label}: {format_bytes(event.live_bytes)}, {share:.0f} %"
            case TokenWritten():
                shade = next((colour for least, colour in SHADES if event.kl is not None and event.kl >= least), "")
                style = f"bold underline {shade}" if event.leaves else shade
                self.answers.setdefault(event.branch, Text()).append(
                    without_controls(event.text), style.strip() or None
                )
            case AnswerEnded():
                held = f"{format_bytes(event.live_bytes)} for {event.tokens_seen:,} tokens"
                self.notes[event.branch] = f"{event.reason}, {event.seconds:.1f} s, {held}"
            case BranchFailed():
                self.notes[event.branch] = f"failed: {event.message}"

    def table(self) -> Table:
        """One column per branch: its name and bytes, its answer, how it ended."""
        table = Table(expand=True, show_lines=True)
        branches = range(len(self.session.branches))
        for branch in branches:
            table.add_column(self.heads.get(branch, self.session.branches[branch].choice.label), ratio=1)
        table.add_row(*(self.answers.get(branch, Text()) for branch in branches))
        table.add_row(*(Text(self.notes.get(branch, ""), "dim") for branch in branches))
        return table
