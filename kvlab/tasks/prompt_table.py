"""Interpret a row of a table of prompts: its prompt, right answers, and columns left out of the prompt.

Used by every reader of rows (`kvlab compare`, the forms, `kvlab eval`, `kvlab tasks --check`), so that a file means the
same everywhere. Torch-free.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kvlab.common.formatting import join_words
from kvlab.core import UserError, plain_text, read_json
from kvlab.requests.conversation import Turn, as_text, dropped_parts, parse_messages
from kvlab.tasks.choices import ENDINGS, KEYS, LISTS, Choices, find_choices
from kvlab.tasks.rows import is_conversation, is_list_of

NEW_TOKENS = 32

# Column names, ignoring case and surrounding white space. The first non-empty column of a group is used.
CHATS = ("messages", "conversation", "conversations", "chat")
BEFORE = ("instruction", "instructions")
PASSAGES = ("context", "document", "article", "passage", "story", "text", "content", "body")
CONTEXTS = (*PASSAGES, "ctx", "sentence", "goal", "premise", "support")
WHOLE = ("prompt",)
QUESTIONS = ("question", "query", "problem", "stem")
AFTER = (("input",), QUESTIONS)
PREFIX = ("answer_prefix",)
ANSWERS = ("answer", "answers", "expected_answer", "expected", "target", "correct_answer")
FACTS = ("facts", "fact")
NAMES = ("name", "title", "id", "_id")
# Columns with settings or names of a row, which are not missed in the prompt.
SETTINGS = (*NAMES, *ANSWERS, *FACTS, "max_new_tokens", "task", "group", "metric", "all_classes", "dataset", "language")
OUTPUTS = ("completion", "completions", "response", "output", "outputs", "reference")
SOURCES = ("version", "split", "split_type", "source_id", "url", "license", "date", "author", "hash", "key", "value")
KINDS = ("type", "category", "subject", "topic", "domain", "difficulty", "level")
NUMBERS = ("index", "idx", "uid", "uuid", "qid", "question_id", "unique_id")
NOT_PROMPTS = {*SETTINGS, *KEYS, *OUTPUTS, *SOURCES, *KINDS, *NUMBERS}
MOST_NAMED = 8

NO_PROMPT = "missing"  # pydantic's error type
RESULT = "####"  # what GSM8K's answers have before their result


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
        # A list of texts is joined as paragraphs.
        texts = {name: "\n\n".join(value) if is_list_of(value, str) else value for name, value in self.values.items()}
        if self.choices:
            # One choice a line, without labels, since the right answer is the text of one.
            texts[self.choices.columns[0]] = "\n".join(f"- {text}" for text in self.choices.texts)
        return {name: plain_text(text) for name, text in texts.items() if isinstance(text, str) and text.strip()}

    @cached_property
    def choices(self) -> Choices | None:
        """The texts to choose from, if the row lists them."""
        return find_choices(self.values)

    @cached_property
    def before(self) -> tuple[str, ...]:
        """The columns of the context, in order; none if it is empty, as in a row that asks without one."""
        main = self.column(WHOLE) or self.column(CONTEXTS)
        if main is None or (main != self.column(WHOLE) and _is_blank(self.values[main])):
            return ()
        first = (BEFORE,) if not self.column(WHOLE) else (("context",),)
        return (*(name for group in first if (name := self.column(group)) in self.texts and name), main)

    @cached_property
    def after(self) -> tuple[str, ...]:
        """The columns after the context, in order."""
        groups = AFTER[1:] if self.column(WHOLE) else AFTER
        found = [*map(self.column, groups), self.listed, self.column(PREFIX)]
        return tuple(name for name in found if name in self.texts and name)

    @cached_property
    def listed(self) -> str | None:
        """The column of the choices, where the prompt lists them because the answer is one of them."""
        if self.choices is None or self.choices.continue_context:
            return None
        column, _ = self.answer_cell
        return self.choices.columns[0] if column and self.is_choice else None

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """All columns of the prompt, in order; without a known column name, the longest text that may be one."""
        if self.before:
            return (*self.before, *self.after)
        known = [name for group in (BEFORE, *AFTER) if (name := self.column(group)) in self.texts and name]
        if known:
            return (*known, *(name for name in self.after if name not in known))
        choices = self.choices.columns if self.choices else ()
        others = [name for name in self.texts if name.casefold() not in NOT_PROMPTS and name not in choices]
        longest = max(others, key=lambda name: len(self.texts[name]), default="")
        nested = max(map(_nested_length, self.values.values()), default=0)
        return (longest,) if longest and len(self.texts[longest]) >= nested else ()

    def prompt(self, column: str = "") -> tuple[str, str]:
        """(context, rest of the prompt); with `column`, that text alone.

        Raises UserError if no column is a prompt, or that of the context holds no text.
        """
        if column:
            return self.texts.get(column, ""), ""
        if self.before and self.before[-1] not in self.texts:
            if _is_blank(self.values[self.before[-1]]):
                return "", ""
            raise UserError(f"{self.what}: the column {self.before[-1]} is no text: give its text, or a list of texts.")
        if not self.parts:
            raise UserError(
                f"{self.what} has no column that is a prompt (its columns: {_some([*self.values])}): call the prompt's "
                "column prompt, or choose one."
            )
        split = len(self.before) or max(1, len(self.parts) - 1)
        names = self.parts
        context = join_texts([self.texts[name] for name in names[:split]])
        whole = join_texts([self.texts[name] for name in names])
        return context, whole[len(context) :]

    def turns(self) -> tuple[Turn, ...]:
        """The conversation, empty if there is none. Raises UserError for one that no model could answer."""
        return () if self.chat is None else parse_messages(_messages(self.values[self.chat]), self.what)[0]

    @cached_property
    def answer_cell(self) -> tuple[str | None, Any]:
        """The column of the answers and its value; with choices it may be the column of a label or index."""
        listed = self.choices.columns if self.choices else ()
        names = [name for name in ANSWERS if self.columns.get(name) not in listed]
        column = self.column(names)
        if self.choices and (column is None or _is_empty(self.values[column])):
            column = self.column(KEYS) or column
        return column, None if column is None else self.values[column]

    @cached_property
    def is_choice(self) -> bool:
        """Whether every answer is one of the row's choices. A metric that the row names takes answers as written."""
        if self.choices is None or self.columns.get("metric") in self.texts:
            return False
        keys = _as_list(self.answer_cell[1])
        return bool(keys) and all(self.choices.chosen(key) is not None for key in keys)

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """Right answers; any of them counts. An answer that refers to a choice is the text of that choice."""
        column, value = self.answer_cell
        if self.choices and self.is_choice:
            return tuple(dict.fromkeys(filter(None, map(self.choices.chosen, _as_list(value)))))
        return () if column is None or column.casefold() in KEYS else tuple(dict.fromkeys(_answers(value)))

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """Texts of the prompt that the answer needs."""
        column = self.column(FACTS)
        return () if column is None else tuple(_answers(self.values[column]))

    @property
    def name(self) -> str:
        return next(
            (self.texts[heading] for one in NAMES if (heading := self.columns.get(one)) in self.texts and heading), ""
        )

    def not_read(self, column: str = "") -> tuple[str, ...]:
        """Sentences about columns that are not in the prompt."""
        if column:
            read: tuple[str, ...] = (column,)
        else:
            read = (self.chat,) if self.chat else self.parts
        answers, value = self.answer_cell
        if self.choices and self.choices.columns[0] in read:
            read = (*read, *self.choices.columns)
        others = [name for name in self.values if name not in read and name.casefold() not in SETTINGS]
        others = [name for name in others if name != answers]
        spare = [name for name in ANSWERS if (heading := self.columns.get(name)) and heading not in (answers, *read)]
        names = [name for name in others if _is_text(self.values[name])]
        names += [heading for one in spare if _is_text(self.values[heading := self.columns[one]])]
        notes = [f"Left out of the prompt: the column{'s' * (len(names) > 1)} {_some(names)}."] if names else []
        if self.chat and self.chat in read:
            notes += dropped_parts(_messages(self.values[self.chat]) or [])
        # An answer that is not taken as it is written.
        written = [_word(one) for one in _as_list(value)]
        label = r"-?\d+|[(]?[A-Za-z][).]?"
        if self.choices and self.is_choice:
            if [*self.answers] != written:
                notes.append(f"The answer is the choice that {answers} names, by label or by index from 0.")
        elif (
            self.choices
            and self.columns.get("metric") not in self.texts
            and any(re.fullmatch(label, one) for one in written)
        ):
            then = "there is no answer" if not self.answers else "it is taken as it is written"
            notes.append(f"What the column {answers} names is none of the row's choices: {then}.")
        elif any(RESULT in one for one in written):
            notes.append(f"The answer is what follows {RESULT} in the column {answers}.")
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
        values: dict[str, Any] = {}
        for number, (name, cell) in enumerate(value.items(), 1):
            values[str(name).strip() or f"column {number}"] = cell
        # A question or passage that is an object has its text in the column, and its choices as a column.
        for name, cell in [*values.items()]:
            if name.casefold() in (*QUESTIONS, *CONTEXTS) and isinstance(cell, Mapping):
                fields = {str(field).casefold(): one for field, one in cell.items()}
                text = next((fields[field] for field in ("stem", "text", "question") if field in fields), None)
                if isinstance(text, str):
                    values |= {field: one for field, one in fields.items() if field in (*LISTS, *ENDINGS)}
                    values[name] = text
        row = PromptRow(values, what)
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


def _is_blank(value: Any) -> bool:
    """Whether a cell is empty, or white space alone."""
    texts = _as_list(value)
    return all(_is_empty(one) or (isinstance(one, str) and not one.strip()) for one in texts)


def _nested_length(value: Any) -> int:
    """Number of characters in the texts of an object, or of objects or lists in a list."""
    if isinstance(value, Mapping):
        return sum(len(one) if isinstance(one, str) else _nested_length(one) for one in value.values())
    if not isinstance(value, list) or is_list_of(value, str):
        return 0
    return sum(sum(map(len, one)) if is_list_of(one, str) else _nested_length(one) for one in value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if _is_empty(value) else [value]


def _is_text(value: Any) -> bool:
    """Whether a value contains words, not only numbers or booleans."""
    if isinstance(value, str):
        return bool(value.strip()) and not value.strip().replace(".", "", 1).replace("-", "", 1).isdigit()
    if isinstance(value, dict):
        return any(_is_text(one) for one in value.values())
    return isinstance(value, list) and any(_is_text(one) for one in value)


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
    if isinstance(value, Mapping):  # texts and positions (SQuAD), a name and others for it (TriviaQA), spans (DROP)
        fields = ("text",) if "text" in value else ("value", "aliases", "spans", "input_text")
        value = [value[field] for field in fields if field in value]
    if isinstance(value, list | tuple):
        return [word for one in value for word in _answers(one)]
    word = _word(value).rpartition(RESULT)[2].strip()
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

    answer_required: ClassVar[bool] = True

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
    def _of_a_row(cls, values: Any) -> Any:
        row = as_row(values, "The row")
        cells = {name: row.values[row.columns[name]] for name in COPIED if name in row.columns}
        fields: dict[str, Any] = {name: value for name, value in cells.items() if not _is_empty(value)}
        turns = row.turns()
        context, question = (as_text(turns), "") if turns else row.prompt()
        column, value = row.answer_cell
        blank = [""] if column is not None and column.casefold() not in KEYS and not _is_empty(value) else []
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
        if not cls.answer_required:
            return [answer for answer in answers if answer]
        if not answers:
            raise PydanticCustomError(NO_PROMPT, "there is no answer")
        if not all(answers):
            raise ValueError("an answer is empty")
        return answers


COPIED = ("max_new_tokens", "task", "group", "metric", "all_classes")


class PromptRecord(TableRecord):
    """A row that may have no answers."""

    answer_required = False
