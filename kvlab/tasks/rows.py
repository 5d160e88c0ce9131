"""Read files of rows: JSON lines, JSON, CSV or Parquet, recognised by content and name. Torch-free."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.common.formatting import format_bytes
from kvlab.core import UserError, decode_text, read_json

PARQUET = b"PAR1"
TYPES = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
SEPARATORS = ",;\t"
ROWS_AT_ONCE = 64
_WRITTEN = re.compile(r"\d[.eE]")
# Columns of a JSON object that is a whole data set, whose rows they list.
LISTS_OF_ROWS = (
    "data",
    "rows",
    "examples",
    "instances",
    "records",
    "items",
    "samples",
    "train",
    "validation",
    "test",
    "dev",
)
csv.field_size_limit(2**27)


@dataclass(frozen=True)
class Row:
    """One row with its number from 1: its value, or why it has none.

    The number is the line for JSON lines, where a line with several questions counts once for each.
    """

    number: int
    value: Any = None
    problem: str = ""


def is_table(name: str) -> bool:
    """Whether a file of this name contains rows."""
    return PurePath(name).suffix.lower().removeprefix(".") in TYPES


def is_csv(name: str) -> bool:
    """Whether a file of this name is CSV or TSV."""
    return PurePath(name).suffix.lower() in (".csv", ".tsv")


def read_rows(name: str, content: bytes, largest: int | None = None) -> Iterator[Row]:
    """Yield the rows of a file; `largest` limits the unpacked bytes of a Parquet file.

    Raises UserError if the content does not match the file's name or magic bytes.
    """
    if content.startswith(PARQUET) or name.lower().endswith(".parquet"):
        return _parquet(name, content, largest)
    return rows_of_text(name, decode_text(content, f"The file {name}"))


def rows_of_text(name: str, text: str) -> Iterator[Row]:
    """Yield the rows of a text file; raises UserError as `read_rows`."""
    if is_csv(name):
        return (Row(number, value) for number, value in enumerate(_csv(name, text), 1))
    begins = text.lstrip()[:1]
    is_json = name.lower().endswith(".json")
    if begins in ("[", "{") or is_json:
        try:
            value = _parsed(text)
        except ValueError as error:
            first = next((line for line in text.split("\n") if line.strip()), "")
            if is_json and _line(1, first).problem:  # not lines of JSON either
                raise UserError(f"{name} is not JSON ({error}): give an object, or a list of objects.") from error
        else:
            # A list's entries, those of a data set, or a single object or conversation.
            if isinstance(value, dict):
                lists = [value[one] for one in LISTS_OF_ROWS if is_list_of(value.get(one), dict)]
                value = [one.get("row", one) for one in lists[0]] if len(lists) == 1 else [value]
            elif not isinstance(value, list) or is_conversation(value):
                value = [value]
            if not value:
                raise UserError(f"{name} is an empty list: give at least one object in it.")
            rows = [row for one in value for row in _questions(one)]
            return (Row(number, row) for number, row in enumerate(rows, 1))
    return _lines(text)


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, not of rows."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _questions(value: Any) -> list[Any]:
    """One row for each question of an article (SQuAD, QuALITY) or of a paragraph (MRQA); else the value."""
    if isinstance(value, dict):
        for inner in ("paragraphs", "qas", "questions"):
            if is_list_of(value.get(inner), dict) and (inner != "questions" or "question" in value[inner][0]):
                around = {name: one for name, one in value.items() if name != inner}
                return [row for one in value[inner] for row in _questions({**around, **one})]
    return [value]


def is_list_of(value: Any, kind: type) -> bool:
    """Whether a value is a list of values of a type, and not an empty one."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, kind) for one in value)


def _lines(text: str) -> Iterator[Row]:
    further = 0  # questions beyond the first of a line
    # Only \n ends a JSON line; str.splitlines would also split inside strings.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.lstrip("\ufeff")  # concatenated files each have a byte order mark
        if line.strip():
            row = _line(number + further, line)
            rows = _questions(row.value)
            yield from (Row(row.number + more, value, row.problem) for more, value in enumerate(rows))
            further += len(rows) - 1


def _line(number: int, line: str) -> Row:
    try:
        return Row(number, _parsed(line))
    except ValueError as error:
        return Row(number, problem=str(error))


class WrittenNumber(float):
    """A number of a JSON text, which as text is what was written: 3.50 stays 3.50."""

    def __new__(cls, written: str) -> "WrittenNumber":
        number = super().__new__(cls, written)
        number.written = written
        return number

    written: str

    def __str__(self) -> str:
        return self.written


def _parsed(text: str) -> Any:
    """What the JSON holds, numbers with a point or a power of ten as written; raises ValueError as `read_json`."""
    value = read_json(text)
    return json.loads(text, parse_float=WrittenNumber) if _WRITTEN.search(text) else value


def _csv(name: str, text: str) -> list[dict[str, Any]]:
    """Rows by the column names in the first line, whose most common separator is used."""
    first = text.split("\n", 1)[0]
    separator = max(SEPARATORS, key=first.count)
    spaced = f"{separator} " in first  # otherwise a cell's leading space is kept
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=spaced)
        lines = [line for line in reader if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise UserError(f"{name} is not a table ({error}): save it as CSV with double quotes.") from error
    if len(lines) < 2:
        raise UserError(f"{name} has a header but no rows: give at least one row under it.")
    header = [cell.strip() for cell in lines[0]]
    if len(set(header)) < len(header):
        raise UserError(f"{name} has two columns of the same name: rename one of them.")
    for number, line in enumerate(lines[1:], 1):
        if any(cell.strip() for cell in line[len(header) :]):
            raise UserError(
                f"Row {number} of {name} has {len(line)} cells under {len(header)} columns: put a text that holds the "
                "separator in double quotes."
            )
    cells = ([cell if cell.strip() else None for cell in line] for line in lines[1:])
    return [dict(zip(header, line, strict=False)) for line in cells]


def _parquet(name: str, content: bytes, largest: int | None) -> Iterator[Row]:
    """Read few rows at a time, as a small compressed file can be very large."""
    number = 0
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
        _check_unpacked(name, sum(group.total_byte_size for group in groups), largest)
        for batch in file.iter_batches(ROWS_AT_ONCE):
            _check_unpacked(name, batch.nbytes, largest)
            for value in batch.to_pylist():
                number += 1
                yield Row(number, value)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise UserError(
            f"{name} is no Parquet file or a damaged one ({reason}): write a damaged Parquet file again."
        ) from error


def _check_unpacked(name: str, size: int, largest: int | None) -> None:
    if largest is not None and size > largest:
        raise UserError(
            f"{name} has {format_bytes(size)} or more unpacked and the most is {format_bytes(largest)}: save fewer "
            "rows in a separate file."
        )
