"""Read validated records from a user's file (`kvlab.tasks.rows`); malformed ones are reported by file and line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, JsonValue, ValidationError
from transformers import PreTrainedTokenizerBase

from kvlab.core import UserError, decode_text, read_file
from kvlab.tasks.prompt_table import ANSWERS, TableRecord
from kvlab.tasks.rows import PARQUET, read_rows
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens

LARGEST_FILE_BYTES = 2**31  # LongBench v2 has 465 MB
SHOWN_COLUMNS = 12

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class Loaded:
    """A loader's result: the samples, one sentence per skipped malformed line, and further notes."""

    samples: list[Sample]
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Return a file's text; raises UserError if it cannot be read or is not text."""
    return decode_text(read_file(path, "The file", LARGEST_FILE_BYTES), str(path))


def read_records(path: Path, kind: type[Record], skip_malformed: bool) -> tuple[list[tuple[int, Record]], list[str]]:
    """Return the (line number, record) pairs of a file, and a sentence per skipped line.

    Raises UserError at the first malformed line unless `skip_malformed`, for a damaged Parquet file or a missing
    column, and if no line is usable.
    """
    content = read_file(path, "The file", LARGEST_FILE_BYTES)
    rows = read_rows(str(path), content)
    if content.startswith(PARQUET) and (first := next(rows, None)) is not None:
        # Every required field has a column, under one of its spellings.
        columns = [str(name).strip() for name in first.value]
        there = {name.casefold() for name in columns}
        needed = [_spellings(kind, name) for name, info in kind.model_fields.items() if info.is_required()]
        for names in [list(ANSWERS)] if kind is TableRecord else needed:
            if not {name.casefold() for name in names} & there:
                has = ", ".join(columns[:SHOWN_COLUMNS])
                raise UserError(f"{path} has no column {' or '.join(map(repr, names[:2]))}: its columns are {has}.")
        rows = chain([first], rows)
    spellings = [one for name in kind.model_fields for one in _spellings(kind, name)]
    known = {name.casefold(): name for name in reversed(spellings)}
    records: list[tuple[int, Record]] = []
    skipped: list[str] = []
    for row in rows:
        value = row.value
        if isinstance(value, Mapping) and not issubclass(kind, TableRecord):
            # Keys become the record's field names, ignoring case; empty cells are dropped.
            cells = {str(name).strip(): one for name, one in value.items() if one is not None}
            exact = {name: one for name, one in cells.items() if name in spellings}
            value = {known.get(name.casefold(), name): one for name, one in cells.items() if name not in exact} | exact
        try:
            why = f"not valid JSON ({row.problem})" if row.problem else ""
            if not (why or isinstance(row.value, Mapping) or issubclass(kind, TableRecord)):
                why = "it should be an object"
            if not why:
                records.append((row.number, kind.model_validate(value)))
        except ValidationError as error:
            why = reason(error)
        if why:
            skipped.append(f"{path}:{row.number}: {why.rstrip('.')}.")
            if not skip_malformed:
                raise UserError(f"{skipped[-1]} Fix the line, or skip such lines with --set skip_malformed=yes.")
    if not records:
        hint = f"the first is {skipped[0]}" if skipped else "give one JSON object a line."
        raise UserError(f"{path} has no usable line: {hint}")
    return records, skipped


def _spellings(kind: type[BaseModel], name: str) -> list[str]:
    alias = kind.model_fields[name].validation_alias
    return [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [name]


def reason(error: ValidationError) -> str:
    """The first error of a record, as part of a sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return str(cause)
    if first["type"] == "missing":
        return f"there is no field '{place}'"
    return f"field '{place}': {first['msg']}" if place else first["msg"]


def sample_of(
    number: int,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    question: str,
    *,
    meta: dict[str, JsonValue] | None = None,
    **fields: Any,
) -> Sample:
    """Return the sample of a file's entry `number`, counted from 1; `fields` are further fields of `Sample`."""
    counted = {"index": number - 1, "seed": 0, "length": count_tokens(tokenizer, context, question)}
    return Sample(context=context, question=question, meta={"line": number} | (meta or {}), **(counted | fields))
