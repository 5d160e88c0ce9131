"""`kvlab chat`: talk to the full and to compressed caches side by side about one text."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.prompt import PromptOptions
from kvlab.cli.options.signature import grouped
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.common.terminal import standard_error, standard_output, without_controls
from kvlab.common.validation import as_option, in_one_sentence
from kvlab.requests.compare import ModelRequest

if TYPE_CHECKING:
    from kvlab.live.events import Event
    from kvlab.live.session import LiveSession, Sampling

COMMANDS = "/again answers once more, /restart begins anew, /budget 0.1 changes all budgets, /quit ends"
SHADES = ((1.0, "red"), (0.1, "dark_orange"), (0.01, "yellow"))  # least KL in nats, and its colour
PIPED_WIDTH = 160


@grouped
def chat(
    text: PromptOptions,
    model: ModelOptions,
    methods: Annotated[str, typer.Option(help="such as snapkv,keepkv:preset=paper")] = "snapkv,keepkv,exactmerge2",
    budgets: Annotated[str, typer.Option(help="fractions of the context, slots per KV head, or bytes")] = "0.2",
    question: Annotated[list[str] | None, typer.Option(help="ask this and end; repeatable: a conversation")] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0: the likeliest token")] = 0.0,
    seed: Annotated[int, typer.Option(help="seed of sampling and of random methods")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print every event as a line of JSON")] = False,
) -> None:
    """Read a text once, compress it with several methods, and answer questions in all caches side by side.

    Words are shaded by the KL of a lane's prediction from the full cache's, as long as their texts agree; the word at
    which a text leaves the full cache's is underlined.
    """
    from kvlab.live.session import LiveSession, Sampling
    from kvlab.methods.spec import parse_choices
    from kvlab.models.chat import chat_of
    from kvlab.models.load import held_model

    context = text.read()
    choices = parse_choices(methods, budgets)
    try:
        request = ModelRequest(**model.fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None
    loaded = held_model(request)
    session = LiveSession(loaded, context, choices, chat_of(request, loaded.tokenizer), seed)
    talk = Talk(session, Sampling(temperature, seed, new_tokens), print_json if as_json else Screen(session).show)
    talk.show(session.read_context())
    if question:
        for one in question:
            talk.ask(one)
    else:
        talk.read_questions()


def print_json(events: Iterator[Event]) -> None:
    """Print each event as a line of JSON."""
    for event in events:
        typer.echo(json.dumps(event.as_json(), ensure_ascii=False))


@dataclass
class Talk:
    """A conversation in the terminal."""

    session: LiveSession
    sampling: Sampling
    show: Callable[[Iterator[Event]], None]
    last: str = ""

    def ask(self, question: str) -> None:
        """Answer a question in all lanes; Ctrl-C ends the answers, not the conversation."""
        self.last = question
        with stopping(self.session):
            self.show(self.session.ask(question, self.sampling))

    def read_questions(self) -> None:
        """Read questions and commands from standard input until its end or `/quit`."""
        typer.echo(COMMANDS, err=True)
        while True:
            typer.echo("> ", err=True, nl=False)
            line = sys.stdin.readline()
            if not line or line.strip() == "/quit":
                return
            try:
                self.follow(line.strip())
            except UserError as error:
                typer.echo(str(error), err=True)

    def follow(self, line: str) -> None:
        """Carry out a command, or ask a question."""
        command, _, value = line.partition(" ")
        if command == "/again":
            with stopping(self.session):
                self.show(self.session.ask_again(self.last, self.sampling))
        elif command == "/restart":
            self.session.go_back(0)
        elif command == "/budget":
            self.change_budgets(value)
        elif command.startswith("/"):
            raise UserError(f"There is no command {command}: {COMMANDS}.")
        elif line:
            self.ask(line)

    def change_budgets(self, value: str) -> None:
        """Compress the context again in every lane but the full cache's."""
        from kvlab.methods.spec import parse_choices

        for number, lane in enumerate(self.session.lanes[1:], 1):
            budget = parse_choices("h2o", value)[0].budget
            self.show(self.session.change_lane(number, lane.choice.model_copy(update={"budget": budget})))


@contextmanager
def stopping(session: LiveSession) -> Iterator[None]:
    """Let Ctrl-C end the answers that are being written."""
    before = signal.signal(signal.SIGINT, lambda *_: session.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Screen:
    """The lanes as columns, redrawn with every token; without a terminal, the answers when they are complete."""

    session: LiveSession
    console: Console = field(default_factory=lambda: standard_output(PIPED_WIDTH))
    heads: dict[int, str] = field(default_factory=dict)
    answers: dict[int, Text] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)

    def show(self, events: Iterator[Event]) -> None:
        """Follow events until they end."""
        self.answers, self.notes = {}, {}
        if self.console.is_terminal:
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
        from kvlab.live.events import AnswerEnded, ContextRead, LaneFailed, LaneSettled, TokenWritten

        match event:
            case ContextRead():
                line = f"{event.tokens:,} tokens read and compressed in {event.seconds:.1f} s"
                standard_error().print(line)
            case LaneSettled():
                share = 100 * event.live_bytes / event.full_bytes
                self.heads[event.lane] = f"{event.label}: {format_bytes(event.live_bytes)}, {share:.0f} %"
            case TokenWritten():
                shade = next((colour for least, colour in SHADES if event.kl is not None and event.kl >= least), "")
                style = f"bold underline {shade}" if event.leaves else shade
                self.answers.setdefault(event.lane, Text()).append(without_controls(event.text), style.strip() or None)
            case AnswerEnded():
                held = f"{format_bytes(event.live_bytes)} for {event.tokens_seen:,} tokens"
                self.notes[event.lane] = f"{event.reason}, {event.seconds:.1f} s, {held}"
            case LaneFailed():
                self.notes[event.lane] = f"failed: {event.message}"

    def table(self) -> Table:
        """One column per lane: its name and bytes, its answer, how it ended."""
        table = Table(expand=True, show_lines=True)
        lanes = range(len(self.session.lanes))
        for lane in lanes:
            table.add_column(self.heads.get(lane, self.session.lanes[lane].choice.label), ratio=1)
        table.add_row(*(self.answers.get(lane, Text()) for lane in lanes))
        table.add_row(*(Text(self.notes.get(lane, ""), "dim") for lane in lanes))
        return table
