"""Files as people upload them: text, Markdown, or a table of prompts as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import PurePath

from kvlab.errors import UserError
from kvlab.given import read_json
from kvlab.jobs.prompts import check_prompt, decode_upload

TYPES = ("txt", "md", "jsonl", "csv")
csv.field_size_limit(2**27)


@dataclass(frozen=True)
class Upload:
    """What a file holds: one text, or rows of named texts of which the reader takes one."""

    name: str
    text: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)

    @property
    def fields(self) -> list[str]:
        """The names of the texts, those with the longest texts first."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return sorted(names, key=lambda name: -max(len(row.get(name, "")) for row in self.rows))

    def pick(self, row: int, name: str) -> str:
        """One text of the table; raises UserError where it is empty."""
        return check_prompt(self.rows[row].get(name, ""))


def read_upload(name: str, content: bytes) -> Upload:
    """The content of an uploaded file, by its ending.

    Raises:
        UserError: it is too large, empty, not text, or not what its ending says.
    """
    text = decode_upload(name, content)
    kind = PurePath(name).suffix.lower()
    if kind == ".jsonl":
        return Upload(name, rows=_json_lines(name, text))
    if kind == ".csv":
        return Upload(name, rows=read_csv(name, text))
    return Upload(name, text=text)


def _json_lines(name: str, text: str) -> list[dict[str, str]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = read_json(line)
        except ValueError as error:
            raise UserError(f"Line {number} of {name} is not JSON ({error}): give one object a line.") from error
        texts = {"text": value} if isinstance(value, str) else _texts(value)
        if not texts:
            raise UserError(f"Line {number} of {name} holds no text: give objects with at least one text in them.")
        rows.append(texts)
    return rows


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): text for key, text in value.items() if isinstance(text, str) and text.strip()}


def read_csv(name: str, text: str) -> list[dict[str, str]]:
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
