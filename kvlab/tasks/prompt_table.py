"""Interpret a row of a table of prompts: its prompt, right answers, and columns left out of the prompt.

Used by every reader of rows (`kvlab compare`, the forms, `kvlab eval`, `kvlab data check`), so that a file means the
same everywhere. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kvlab.common.formatting import join_words
from kvlab.core.errors import UserError
from kvlab.core.validation import plain_text, read_json
from kvlab.requests.conversation import Turn, as_text, dropped_parts, parse_messages
from kvlab.tasks.rows import is_conversation

NEW_TOKENS = 32

# Column names, ignoring case and surrounding white space. The first non-empty column of a group is used.
CHATS = ("messages", "conversation", "conversations", "chat")
BEFORE = ("instruction", "instructions")
CONTEXTS = ("context", "document", "article", "passage", "story", "text", "content", "body")
WHOLE = ("prompt",)
AFTER = (("input",), ("question", "query", "problem"))
PREFIX = ("answer_prefix",)
ANSWERS = ("answer", "answers", "expected_answer", "expected", "target")
FACTS = ("facts", "fact")
NAMES = ("name", "title", "id", "_id")
# Columns with settings or names of a row, which are not missed in the prompt.
SETTINGS = (*NAMES, *ANSWERS, *FACTS, "max_new_tokens", "task", "group", "metric", "all_classes", "dataset", "language")
NOT_PROMPTS = {*SETTINGS, "completion", "completions", "response", "output", "outputs", "reference", "label"}
MOST_NAMED = 8

NO_PROMPT = "missing"  # pydantic's error type


@dataclass(frozen=True)
class PromptRow:
    """A row as read, with stripped column names."""

    values: Mapping[str, Any]
    what: str = "The row"  # how messages name it

    @cached_property
    def columns(self) -> dict[str, str]:
        """Column names by lower-case name; a column written in lower case wins over others."""
        return {name.casefold(): name for name in sorted(self.values, key=lambda name: name == name.casefold())}

    def column(self, names: Sequence[str]) -> str | None:
        """The first non-empty one of these columns, else the first that exists."""
        existing = [self.columns[name] for name in names if name in self.columns]
        return next((name for name in existing if not _is_empty(self.values[name])), next(iter(existing), None))

    @cached_property
    def chat(self) -> str | None:
        """The column with a conversation, if any."""
        listed = [*CHATS, *WHOLE]
        return next((name for one in listed if (name := self.columns.get(one)) and _messages(self.values[name])), None)

    @cached_property
    def texts(self) -> dict[str, str]:
        """Non-empty texts by column."""
        texts = {name: _text(value) for name, value in self.values.items()}
        return {name: text for name, text in texts.items() if text.strip()}

    @cached_property
    def before(self) -> tuple[str, ...]:
        """The columns of the context, in order."""
        main = self.column(WHOLE) or self.column(CONTEXTS)
        if main is None:
            return ()
        first = (BEFORE,) if not self.column(WHOLE) else (("context",),)
        return (*(name for group in first if (name := self.column(group)) in self.texts and name), main)

    @cached_property
    def after(self) -> tuple[str, ...]:
        """The columns after the context, in order."""
        groups = AFTER[1:] if self.column(WHOLE) else AFTER
        found = [self.column(group) for group in (*groups, PREFIX)]
        return tuple(name for name in found if name in self.texts and name)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """All columns of the prompt, in order; without a known column name, the longest text."""
        if self.before:
            return (*self.before, *self.after)
        known = [name for group in (BEFORE, *AFTER) if (name := self.column(group)) in self.texts and name]
        if known:
            return (*known, *(name for name in self.after if name not in known))
        longest = sorted(self.texts, key=lambda name: (name.casefold() in NOT_PROMPTS, -len(self.texts[name])))
        return tuple(longest[:1])

    def prompt(self, column: str = "") -> tuple[str, str]:
        """(context, rest of the prompt); with `column`, that text alone."""
        if column:
            return self.texts.get(column, ""), ""
        if self.before and self.before[-1] not in self.texts:
            return "", ""
        split = len(self.before) or max(1, len(self.parts) - 1)
        names = self.parts
        context = join_texts([self.texts[name] for name in names[:split]])
        whole = join_texts([self.texts[name] for name in names])
        return context, whole[len(context) :]

    def turns(self) -> tuple[Turn, ...]:
        """The conversation, empty if there is none. Raises UserError for one that no model could answer."""
        return () if self.chat is None else parse_messages(_messages(self.values[self.chat]), self.what)[0]

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """Right answers; any of them counts."""
        column = self.column(ANSWERS)
        return () if column is None else tuple(dict.fromkeys(_answers(self.values[column])))

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """Texts of the prompt that the answer needs."""
        column = self.column(FACTS)
        return () if column is None else tuple(_answers(self.values[column]))

    @property
    def name(self) -> str:
        return next((self.texts[own] for one in NAMES if (own := self.columns.get(one)) in self.texts and own), "")

    def not_read(self, column: str = "") -> tuple[str, ...]:
        """Sentences about columns that are not in the prompt."""
        if column:
            read: tuple[str, ...] = (column,)
        else:
            read = (self.chat,) if self.chat else self.parts
        others = [name for name in self.values if name not in read and name.casefold() not in SETTINGS]
        answers = self.column(ANSWERS)
        spare = [name for name in ANSWERS if (own := self.columns.get(name)) and own != answers]
        names = [name for name in others if _is_text(self.values[name])]
        names += [own for one in spare if _is_text(self.values[own := self.columns[one]])]
        notes = [f"Left out of the prompt: the column{'s' * (len(names) > 1)} {_some(names)}."] if names else []
        if self.chat and self.chat in read:
            notes += dropped_parts(_messages(self.values[self.chat]) or [])
        return tuple(notes)


def as_row(value: Any, what: str) -> PromptRow:
    """The row of one entry of a file: an object, a plain text, or the messages of a conversation.

    Raises UserError for anything else, and for an entry without text.
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


def join_texts(texts: Sequence[str]) -> str:
    """Concatenate the texts, with an empty line between two unless there is white space."""
    whole = ""
    for text in texts:
        is_separated = not whole or not text or whole[-1].isspace() or text[0].isspace()
        whole += text if is_separated else f"\n\n{text}"
    return whole


def _is_empty(value: Any) -> bool:
    """Whether a cell is empty; NaN counts as empty, as tables use it for missing numbers."""
    return value is None or value == "" or value == [] or (isinstance(value, float) and math.isnan(value))


def _is_text(value: Any) -> bool:
    """Whether a value contains words, not only numbers or booleans."""
    if isinstance(value, str):
        return bool(value.strip()) and not value.strip().replace(".", "", 1).replace("-", "", 1).isdigit()
    if isinstance(value, dict):
        return any(_is_text(one) for one in value.values())
    return isinstance(value, list) and any(_is_text(one) for one in value)


def _text(value: Any) -> str:
    """A text, or a list of texts joined as paragraphs; else empty."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = "\n\n".join(value)
    return plain_text(value) if isinstance(value, str) else ""


def _messages(value: Any) -> list[Any] | None:
    """The messages of a cell, also as JSON text; None if it has none."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json(value)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(one, dict) and "from" in one and "value" in one for one in value):
        value = [{"role": one["from"], "content": one["value"]} for one in value]
    return value if is_conversation(value) else None


def _answers(value: Any) -> list[str]:
    """The accepted answers of a cell as texts."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        parsed = _json(value)  # CSV has lists as JSON; a list of numbers is itself an answer
        value = parsed if isinstance(parsed, list) and all(isinstance(item, str) for item in parsed) else value
    if isinstance(value, Mapping):  # SQuAD: texts with their positions
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
    written = plain_text(str(value)).strip()
    if isinstance(value, float) and written.endswith(".0") and abs(value) < 2**53:
        return str(int(value))  # integer columns with missing values are written as floats
    return written


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return join_words([*names[:MOST_NAMED], *more])


class TableRecord(BaseModel):
    """A row for an evaluation: it must have answers; `question` follows the context, `group` is a name of its kind."""

    context: str = Field("", validate_default=True)
    answer: list[str] = Field(default_factory=list, validate_default=True)
    question: str = ""
    notes: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    max_new_tokens: int = Field(NEW_TOKENS, ge=1, le=4096)
    task: str = ""
    group: str = ""
    metric: str = ""
    all_classes: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _of_a_row(cls, given: Any) -> Any:
        row = as_row(given, "The row")
        cells = {name: row.values[row.columns[name]] for name in COPIED if name in row.columns}
        fields: dict[str, Any] = {name: value for name, value in cells.items() if not _is_empty(value)}
        turns = row.turns()
        context, question = (as_text(turns), "") if turns else row.prompt()
        column = row.column(ANSWERS)
        blank = [""] if column is not None and not _is_empty(row.values[column]) else []
        more = {"turns": turns, "notes": row.not_read(), "answer": list(row.answers) or blank}
        return fields | {"context": context, "question": question} | more

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


COPIED = ("max_new_tokens", "task", "group", "metric", "all_classes")


class PromptRecord(TableRecord):
    """A row that may have no answers."""

    @field_validator("answer")
    @classmethod
    def _there_is_an_answer(cls, answers: list[str]) -> list[str]:
        return [answer for answer in answers if answer]
