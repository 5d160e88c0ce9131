"""Reading records: JSON lines, a JSON list or Parquet. Every malformed one is named by file and line (or entry)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AliasChoices, BaseModel, ValidationError

from kvlab.errors import UserError
from kvlab.given import read_file, read_json
from kvlab.tasks.sample import Sample

LARGEST_FILE_BYTES = 2**31  # LongBench v2 has 465 MB
PARQUET = b"PAR1"
SHOWN_COLUMNS = 12

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class Loaded:
    """What a loader returns: the samples, and one sentence for each malformed line that was skipped."""

    samples: list[Sample]
    skipped: list[str] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Return a file's text; raises UserError where it cannot be read or is not UTF-8."""
    return _decoded(path, _read(path))


def read_records(path: Path, kind: type[Record], skip_malformed: bool) -> tuple[list[tuple[int, Record]], list[str]]:
    """Return the (line number, record) pairs of a file and the sentences about the lines skipped.

    A file that begins as Parquet is read as such, one that is a JSON list by its entries, any other as JSON lines.
    Raises UserError at the first malformed line unless `skip_malformed`, for a Parquet file that lacks a column or is
    damaged, and where no line can be used.
    """
    records: list[tuple[int, Record]] = []
    skipped: list[str] = []
    for number, given in numbered(path, kind):
        try:
            records.append((number, _record(kind, given)))
        except ValidationError as error:
            skipped.append(f"{path}:{number}: {reason(error)}.")
            if not skip_malformed:
                raise UserError(f"{skipped[-1]} Mend the line, or skip such lines with --skip-malformed.") from error
    if not records:
        first = f"the first is {skipped[0]}" if skipped else "give one JSON object a line."
        raise UserError(f"{path} has no usable line: {first}")
    return records, skipped


def _record(kind: type[Record], given: Any) -> Record:
    return kind.model_validate_json(given) if isinstance(given, str) else kind.model_validate(given)


def numbered(path: Path, kind: type[BaseModel] | None = None) -> Iterator[tuple[int, Any]]:
    """Yield every line as text, or every entry of a JSON list or Parquet file as an object, with its number from 1.

    Raises UserError where the file cannot be read, or is Parquet without a column that `kind` needs.
    """
    data = _read(path)
    if data.startswith(PARQUET):
        yield from enumerate(_parquet_rows(path, data, kind), start=1)
        return
    text = _decoded(path, data)
    entries = _json_list(text) if text.lstrip().startswith("[") else None
    if entries is not None:
        yield from enumerate(entries, start=1)
        return
    # Only \n ends a JSON line; str.splitlines would also cut at characters that may stand inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _read(path: Path) -> bytes:
    return read_file(path, "The file", LARGEST_FILE_BYTES)


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it to UTF-8.") from error


def _json_list(text: str) -> list[Any] | None:
    """The entries of a JSON list; None where the text is none, as when its first line only is a list."""
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _parquet_rows(path: Path, data: bytes, kind: type[BaseModel] | None) -> Iterator[dict[str, Any]]:
    """Rows as objects; an empty cell is a field that is not there."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data))
        if kind is not None:
            _check_columns(path, table.schema_arrow.names, kind)
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}
    except (pa.ArrowException, OSError) as error:
        said = " ".join(str(error).split())[:120].rstrip(".")
        raise UserError(f"{path} is a damaged Parquet file ({said}): fetch or write it again.") from error


def _check_columns(path: Path, columns: Sequence[str], kind: type[BaseModel]) -> None:
    """Raise UserError where a field that every record needs is no column."""
    for name, field_info in kind.model_fields.items():
        alias = field_info.validation_alias
        spellings = [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [name]
        if field_info.is_required() and not set(spellings) & set(columns):
            has = ", ".join(map(str, columns[:SHOWN_COLUMNS]))
            raise UserError(f"{path} has no column {' or '.join(map(repr, spellings))}: its columns are {has}.")


def reason(error: ValidationError) -> str:
    """What is wrong with a record, as part of a sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return f"not valid JSON ({first['ctx']['error']})"
    if first["type"] == "missing":
        return f"there is no field '{place}'"
    return f"field '{place}': {first['msg']}" if place else first["msg"]
