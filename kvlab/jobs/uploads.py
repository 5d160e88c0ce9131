"""Files as people have them, as prompts: text, documents, and tables or conversations in JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from kvlab.documents.read import check_size, is_document, read_document
from kvlab.errors import UserError
from kvlab.given import check_text, in_one_sentence, read_json
from kvlab.jobs.prompts import check_prompt, check_upload_size, decode_upload
from kvlab.repeats import MOST_REPEATS
from kvlab.requests import OnePrompt
from kvlab.turns import as_text, read_turns

TYPES = ("txt", "md", "pdf", "docx", "html", "htm", "jsonl", "json", "csv")
MESSAGES = "messages"  # the field of a conversation
ANSWER, FACTS = "answer", ("facts", "fact")
NAMES = ("name", "title", "id", "_id")
NO_PROMPTS = {ANSWER, *FACTS, *NAMES}  # texts of a row that are nobody's prompt while there is another
csv.field_size_limit(2**27)


@dataclass(frozen=True)
class Upload:
    """What a file holds: one text, or rows of which each is a prompt; `left_out` says what of it is not there."""

    name: str
    text: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: tuple[str, ...] = ()

    @property
    def fields(self) -> list[str]:
        """The fields that hold prompts: conversations, then texts, those with the longest first."""
        chats = [MESSAGES] if any(MESSAGES in row for row in self.rows) else []
        longest: dict[str, int] = {}
        for row in self.rows:
            for name, value in _texts(row).items():
                longest[name] = max(longest.get(name, 0), len(value))
        texts = sorted(longest, key=lambda name: (name in NO_PROMPTS, -longest[name]))
        return [*chats, *texts]

    def pick(self, row: int, name: str) -> str:
        """One text of the table; raises UserError where it is empty."""
        return self.one(row, name).prompt

    def one(self, row: int, name: str) -> OnePrompt:
        """The prompt of a row, its answer and facts with it.

        Raises:
            UserError: it is empty, too large, or no conversation that can be answered, or it lacks its facts.
        """
        if not self.rows:
            return OnePrompt(name=self.name[:200], prompt=self.text)
        values, what = self.rows[row], f"Row {row + 1} of {self.name}"
        own = next((values[key] for key in NAMES if isinstance(values.get(key), str) and values[key].strip()), "")
        called = own or (f"row {row + 1} of {self.name}" if len(self.rows) > 1 else self.name)
        asked: dict[str, Any] = {"name": called[:200], "answer": _answer(values), "facts": _facts(values)}
        if name == MESSAGES:
            asked["turns"] = read_turns(values.get(MESSAGES), what)[0]
            check_prompt(as_text(asked["turns"]))
        else:
            asked["prompt"] = check_prompt(_texts(values).get(name, ""))
        try:
            return OnePrompt(**asked)
        except ValidationError as error:
            raise UserError(f"{what}: {in_one_sentence(error)}") from error

    def left_out_of(self, row: int, name: str) -> tuple[str, ...]:
        """What is not in the prompt of a row."""
        if not self.rows or name != MESSAGES:
            return self.left_out
        count = read_turns(self.rows[row].get(MESSAGES), self.name)[1]
        return (f"{count} {'part' if count == 1 else 'parts'} of its messages, no text, left out.",) if count else ()


def prompts_of(uploads: Sequence[Upload], name: str = "", rows: slice = slice(None)) -> list[OnePrompt]:
    """The prompts in all files: of a table those in the field `name`, or in its first, of these rows.

    Raises:
        UserError: one of them cannot be read, a table has no such field, or there are too many.
    """
    found: list[OnePrompt] = []
    for upload in uploads:
        numbers = range(len(upload.rows))[rows] if upload.rows else range(1)
        if name and upload.rows and name not in upload.fields:
            raise UserError(f"{upload.name} has no field {name!r}: choose one of {', '.join(upload.fields)}.")
        chosen = name or next(iter(upload.fields), "")
        if len(found) + len(numbers) > MOST_REPEATS:
            count = len(found) + len(numbers)
            raise UserError(f"There are {count:,} prompts and the most is {MOST_REPEATS}: choose some of the rows.")
        found += [upload.one(number, chosen) for number in numbers]
    if not found:
        raise UserError("There is no prompt in these rows: the first is number 1.")
    return found


def read_upload(name: str, content: bytes) -> Upload:
    """The content of an uploaded file, by its ending.

    Raises:
        UserError: it is too large, empty, not text, or not what its ending says.
    """
    if is_document(name):
        document = read_document(name, content)
        return Upload(
            name, text=check_prompt(check_text(document.text, f"The file {name}")), left_out=document.left_out
        )
    text = decode_upload(name, content)
    kind = PurePath(name).suffix.lower()
    if kind == ".jsonl":
        return Upload(name, rows=_json_lines(name, text))
    if kind == ".json":
        return Upload(name, rows=_json(name, text))
    if kind == ".csv":
        return Upload(name, rows=read_csv(name, text))
    return Upload(name, text=text)


def check_upload(name: str, size: int) -> None:
    """Nothing, before a file's content is taken; raises UserError where it is too large."""
    (check_size if is_document(name) else check_upload_size)(name, size)


def read_messages(name: str, content: bytes) -> Upload:
    """A conversation in OpenAI's form, or several, a line each.

    Raises:
        UserError: there is none in it.
    """
    text = decode_upload(name, content)
    rows = _json_lines(name, text) if PurePath(name).suffix.lower() == ".jsonl" else _json(name, text)
    upload = Upload(name, rows=rows)
    if MESSAGES not in upload.fields:
        read_turns(None, name)
    return upload


def _json_lines(name: str, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = read_json(line)
        except ValueError as error:
            raise UserError(f"Line {number} of {name} is not JSON ({error}): give one object a line.") from error
        rows.append(_row(value, f"Line {number} of {name}"))
    return rows


def _json(name: str, text: str) -> list[dict[str, Any]]:
    """One object, a list of objects or texts, or the messages of one conversation."""
    try:
        value = read_json(text)
    except ValueError as error:
        raise UserError(f"{name} is not JSON ({error}): give an object, or a list of objects.") from error
    if not isinstance(value, list) or (value and isinstance(value[0], dict) and "role" in value[0]):
        return [_row(value, name)]
    if not value:
        raise UserError(f"{name} is an empty list: give at least one object in it.")
    return [_row(one, f"Entry {number} of {name}") for number, one in enumerate(value, 1)]


def _row(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = {"text": value}
    elif isinstance(value, list):
        value = {MESSAGES: value}
    if not isinstance(value, dict) or not (_texts(value) or value.get(MESSAGES)):
        raise UserError(f"{what} holds no text: give objects with at least one text in them.")
    return {str(key): found for key, found in value.items()}


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {key: text for key, text in row.items() if isinstance(text, str) and text.strip()}


def _answer(row: dict[str, Any]) -> str | None:
    value = row.get(ANSWER)
    return value if isinstance(value, str) and value.strip() else None


def _facts(row: dict[str, Any]) -> tuple[str, ...]:
    found = next((row[name] for name in FACTS if row.get(name)), ())
    every = found if isinstance(found, list) else [found]
    return tuple(one for one in every if isinstance(one, str) and one.strip())


def read_csv(name: str, text: str) -> list[dict[str, Any]]:
    """Rows by the names in the first line, whose most common separator (comma, semicolon or tab) is the file's."""
    first = text.split("\n", 1)[0]
    separator = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        header, *lines = [line for line in reader if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise UserError(f"{name} is not a table ({error}): save it as CSV with double quotes.") from error
    if not lines:
        raise UserError(f"{name} has a header but no rows: give at least one row under it.")
    if len(set(header)) < len(header):
        raise UserError(f"{name} has two columns of the same name: rename one of them.")
    return [dict(zip(header, line, strict=False)) for line in lines]
