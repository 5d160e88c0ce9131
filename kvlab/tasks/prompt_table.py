"""One row of a table of prompts: its prompt, the answers that are right, and what of it is not in the prompt.

Every reader of rows (`kvlab compare`, the forms, `kvlab eval`, `kvlab data check`) takes them from here, so that a file
means the same everywhere. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kvlab.common.errors import UserError
from kvlab.common.formatting import listed
from kvlab.common.validation import plain_text, read_json
from kvlab.requests.conversation import Turn, as_text, dropped_parts, parse_messages
from kvlab.tasks.rows import is_conversation

NEW_TOKENS = 32

# Names of columns, in any case and with any white space around. Of each group the first that holds something counts.
CHATS = ("messages", "conversation", "conversations", "chat")
BEFORE = ("instruction", "instructions")
CONTEXTS = ("context", "document", "article", "passage", "story", "text", "content", "body")
WHOLE = ("prompt",)
AFTER = (("input",), ("question", "query", "problem"))
PREFIX = ("answer_prefix",)
ANSWERS = ("answer", "answers", "expected_answer", "expected", "target")
FACTS = ("facts", "fact")
NAMES = ("name", "title", "id", "_id")
# Columns that say how a row is to be run or what it is called: no text that a reader would miss in the prompt.
SETTINGS = (*NAMES, *ANSWERS, *FACTS, "max_new_tokens", "task", "metric", "all_classes", "dataset", "language")
NOT_PROMPTS = {*SETTINGS, "completion", "completions", "response", "output", "outputs", "reference", "label"}
MOST_NAMED = 8

NO_PROMPT = "missing"  # as pydantic calls it


@dataclass(frozen=True)
class PromptRow:
    """A row as it was read, its columns named without white space around."""

    values: Mapping[str, Any]
    what: str = "The row"  # what a sentence calls it

    @cached_property
    def columns(self) -> dict[str, str]:
        """Each column's own name by its name in small letters; written so itself, it comes before others."""
        return {name.casefold(): name for name in sorted(self.values, key=lambda name: name == name.casefold())}

    def column(self, names: Sequence[str]) -> str | None:
        """The first of these columns that holds something; else the first that is there."""
        there = [self.columns[name] for name in names if name in self.columns]
        return next((name for name in there if not _is_empty(self.values[name])), next(iter(there), None))

    @cached_property
    def chat(self) -> str | None:
        """The column that holds a conversation."""
        listed = [*CHATS, *WHOLE]
        return next((name for one in listed if (name := self.columns.get(one)) and _messages(self.values[name])), None)

    @cached_property
    def texts(self) -> dict[str, str]:
        """Every text that is not empty, by its column."""
        found = {name: _text(value) for name, value in self.values.items()}
        return {name: text for name, text in found.items() if text.strip()}

    @cached_property
    def before(self) -> tuple[str, ...]:
        """The columns whose texts come first, a cache's context."""
        main = self.column(WHOLE) or self.column(CONTEXTS)
        if main is None:
            return ()
        beside = (BEFORE,) if not self.column(WHOLE) else (("context",),)
        return (*(name for group in beside if (name := self.column(group)) in self.texts and name), main)

    @cached_property
    def after(self) -> tuple[str, ...]:
        """The columns whose texts are read after the context."""
        groups = AFTER[1:] if self.column(WHOLE) else AFTER
        found = [self.column(group) for group in (*groups, PREFIX)]
        return tuple(name for name in found if name in self.texts and name)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The columns that the prompt is made of, in the order they are read; without a known name the longest text."""
        if self.before:
            return (*self.before, *self.after)
        known = [name for group in (BEFORE, *AFTER) if (name := self.column(group)) in self.texts and name]
        if known:
            return (*known, *(name for name in self.after if name not in known))
        longest = sorted(self.texts, key=lambda name: (name.casefold() in NOT_PROMPTS, -len(self.texts[name])))
        return tuple(longest[:1])

    def prompt(self, column: str = "") -> tuple[str, str]:
        """The context and what is read after it; of one `column`, its text alone.

        Raises:
            UserError: it holds no text, or no conversation that can be answered.
        """
        if column:
            return self.texts.get(column, ""), ""
        if self.before and self.before[-1] not in self.texts:
            return "", ""
        split = len(self.before) or max(1, len(self.parts) - 1)
        names = self.parts
        context = joined([self.texts[name] for name in names[:split]])
        whole = joined([self.texts[name] for name in names])
        return context, whole[len(context) :]

    def turns(self) -> tuple[Turn, ...]:
        """The conversation; none where the row holds none. Raises UserError where no model could answer it."""
        return () if self.chat is None else parse_messages(_messages(self.values[self.chat]), self.what)[0]

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """What is right: any of them."""
        column = self.column(ANSWERS)
        return () if column is None else tuple(dict.fromkeys(_answers(self.values[column])))

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """What the answer needs, as the prompt has it."""
        column = self.column(FACTS)
        return () if column is None else tuple(_answers(self.values[column]))

    @property
    def name(self) -> str:
        """What the row calls itself."""
        return next((self.texts[own] for one in NAMES if (own := self.columns.get(one)) in self.texts and own), "")

    def not_read(self, column: str = "") -> tuple[str, ...]:
        """What of the row is not in its prompt, in sentences."""
        if column:
            read: tuple[str, ...] = (column,)
        else:
            read = (self.chat,) if self.chat else self.parts
        held = [name for name in self.values if name not in read and name.casefold() not in SETTINGS]
        answers = self.column(ANSWERS)
        spare = [name for name in ANSWERS if (own := self.columns.get(name)) and own != answers]
        names = [name for name in held if _is_text(self.values[name])]
        names += [own for one in spare if _is_text(self.values[own := self.columns[one]])]
        told = [f"Left out of the prompt: the column{'s' * (len(names) > 1)} {_some(names)}."] if names else []
        if self.chat and self.chat in read:
            told += dropped_parts(_messages(self.values[self.chat]) or [])
        return tuple(told)


def as_row(value: Any, what: str) -> PromptRow:
    """The row of one line or entry of a file: an object, a text alone, or the messages of a conversation.

    Raises:
        UserError: it is something else, or holds no text.
    """
    if isinstance(value, str):
        value = {"text": value}
    elif isinstance(value, list):
        value = {CHATS[0]: value}
    if isinstance(value, dict):
        names = [str(name).strip() or f"column {number}" for number, name in enumerate(value, 1)]
        row = PromptRow(dict(zip(names, value.values(), strict=True)), what)
        if row.texts or row.chat:
            return row
    raise UserError(f"{what} holds no text: give objects with at least one text in them.")


def joined(texts: Sequence[str]) -> str:
    """The texts one after another, an empty line between two that have no white space there."""
    whole = ""
    for text in texts:
        apart = not whole or not text or whole[-1].isspace() or text[0].isspace()
        whole += text if apart else f"\n\n{text}"
    return whole


def _is_empty(value: Any) -> bool:
    """Whether a cell holds nothing: also the number that tables write where a number is missing."""
    return value is None or value == "" or value == [] or (isinstance(value, float) and math.isnan(value))


def _is_text(value: Any) -> bool:
    """Whether a value holds words: numbers and what says yes or no are nobody's prompt."""
    if isinstance(value, str):
        return bool(value.strip()) and not value.strip().replace(".", "", 1).replace("-", "", 1).isdigit()
    if isinstance(value, dict):
        return any(_is_text(one) for one in value.values())
    return isinstance(value, list) and any(_is_text(one) for one in value)


def _text(value: Any) -> str:
    """A text, or the paragraphs of a list of texts."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = "\n\n".join(value)
    return plain_text(value) if isinstance(value, str) else ""


def _messages(value: Any) -> list[Any] | None:
    """The messages of a cell, which a table without lists holds as JSON; None where it holds none."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json(value)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(one, dict) and "from" in one and "value" in one for one in value):
        value = [{"role": one["from"], "content": one["value"]} for one in value]
    return value if is_conversation(value) else None


def _answers(value: Any) -> list[str]:
    """What a cell accepts, in words; nothing where it is empty."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        found = _json(value)  # a table without lists holds them as JSON; a list of numbers is an answer itself
        value = found if isinstance(found, list) and all(isinstance(one, str) for one in found) else value
    if isinstance(value, Mapping):  # as SQuAD has them, each with its place
        value = value.get("text")
    if isinstance(value, list | tuple):
        return [word for one in value for word in _answers(one)]
    word = _word(value)
    return [word] if word else []


def _word(value: Any) -> str:
    if _is_empty(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # a column of whole numbers where one is missing is one of fractions
    return plain_text(str(value)).strip()


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return listed([*names[:MOST_NAMED], *more])


class TableRecord(BaseModel):
    """A row for an evaluation: it must have answers; `question` is what is read after the context."""

    context: str = Field("", validate_default=True)
    answer: list[str] = Field(default_factory=list, validate_default=True)
    question: str = ""
    notes: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    max_new_tokens: int = Field(NEW_TOKENS, ge=1, le=4096)
    task: str = ""
    metric: str = ""
    all_classes: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_a_row(cls, given: Any) -> Any:
        row = as_row(given, "The row")
        own = {name: row.values[row.columns[name]] for name in OWN if name in row.columns}
        found: dict[str, Any] = {name: value for name, value in own.items() if not _is_empty(value)}
        turns = row.turns()
        context, question = (as_text(turns), "") if turns else row.prompt()
        column = row.column(ANSWERS)
        blank = [""] if column is not None and not _is_empty(row.values[column]) else []
        more = {"turns": turns, "notes": row.not_read(), "answer": list(row.answers) or blank}
        return found | {"context": context, "question": question} | more

    @field_validator("context")
    @classmethod
    def _there_is_a_prompt(cls, context: str) -> str:
        if not context.strip():
            raise PydanticCustomError(NO_PROMPT, "there is no prompt")
        return context

    @field_validator("answer")
    @classmethod
    def _there_is_an_answer(cls, answers: list[str]) -> list[str]:
        if not answers:
            raise PydanticCustomError(NO_PROMPT, "there is no answer")
        if not all(answers):
            raise ValueError("an answer is empty")
        return answers


OWN = ("max_new_tokens", "task", "metric", "all_classes")
