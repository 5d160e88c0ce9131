"""Reading JSON lines: every malformed line is named by file and line number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kvlab.errors import UserError
from kvlab.given import read_file
from kvlab.tasks.sample import Sample

LARGEST_FILE_BYTES = 2**31  # LongBench v2 has 465 MB

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class Loaded:
    """What a loader returns: the samples, and one sentence for each malformed line that was skipped."""

    samples: list[Sample]
    skipped: list[str] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Return a file's text; raises UserError where it cannot be read or is not UTF-8."""
    try:
        return read_file(path, "The file", LARGEST_FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it to UTF-8.") from error


def read_records(path: Path, kind: type[Record], skip_malformed: bool) -> tuple[list[tuple[int, Record]], list[str]]:
    """Return the (line number, record) pairs of a jsonl file and the sentences about the lines skipped.

    Raises UserError at the first malformed line unless `skip_malformed`, and where no line can be used.
    """
    records: list[tuple[int, Record]] = []
    skipped: list[str] = []
    for number, line in _numbered_lines(path):
        try:
            records.append((number, kind.model_validate_json(line)))
        except ValidationError as error:
            skipped.append(f"{path}:{number}: {_reason(error)}.")
            if not skip_malformed:
                raise UserError(f"{skipped[-1]} Mend the line, or skip such lines with --skip-malformed.") from error
    if not records:
        raise UserError(f"{path} has no usable line: give one JSON object a line.")
    return records, skipped


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    # Only \n ends a JSON line; str.splitlines would also cut at characters that may stand inside a string.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield number, line


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return f"not valid JSON ({first['ctx']['error']})"
    return f"field '{place}': {first['msg']}" if place else first["msg"]
