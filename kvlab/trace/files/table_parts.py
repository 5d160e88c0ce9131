"""Find the sound table parts of a run folder, and describe those left out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from kvlab.trace.files.checksums import REMEMBERED, State, cached_checksum, state_of
from kvlab.trace.schema import TABLES, RunRecord

LIST = "parts.json"
LISTED = TypeAdapter(dict[str, list[int]])
PART = re.compile(r"part-\d{5}\.parquet")
LEFT_OUT = "so its rows are left out; the other parts were read."


def sound_parts(path: Path, record: RunRecord) -> tuple[dict[str, list[Path]], list[str]]:
    """The unchanged parts of each table, in order, and a sentence per damaged or unknown part.

    Parts with checksums are verified by them; others are decoded once.
    """
    rows, problems = _listed_rows(path, record)
    parts: dict[str, list[Path]] = {}
    for table in TABLES:
        found = {part.name: part for part in sorted((path / table).glob("*.parquet"))}
        names = _expected_names(record, rows, table, found)
        wrong = {name: why for name in names if (why := _why_not(path, record, rows, table, name))}
        wrong |= {name: "is not one of the parts that this run wrote" for name in found if name not in names}
        parts[table] = [found[name] for name in names if name not in wrong]
        problems += [f"{table}/{name} {why}, {LEFT_OUT}" for name, why in sorted(wrong.items())]
    return parts, problems


def _listed_rows(path: Path, record: RunRecord) -> tuple[dict[str, list[int]] | None, list[str]]:
    """Row counts per part from the writer's list; None if it is missing or damaged (with a sentence if that is
    wrong)."""
    file, fallback = path / LIST, "so a missing part cannot be detected; the existing parts were read."
    if record.checksums is not None and LIST in record.checksums:
        fallback = "but run.json also lists the parts, and they were read."
    try:
        data = file.read_bytes()
    except OSError:
        has_parts = any(path.glob("*/part-*.parquet"))
        told = record.status != "running" and (has_parts if record.checksums is None else LIST in record.checksums)
        return None, [f"{LIST} is missing, {fallback}"] if told else []
    damaged = [f"{LIST} is cut off or damaged, {fallback}"]
    if record.checksums is not None and cached_checksum(file) != record.checksums.get(LIST):
        return None, damaged
    try:
        return LISTED.validate_json(data), []
    except ValidationError:
        return None, damaged


def _expected_names(
    record: RunRecord, rows: dict[str, list[int]] | None, table: str, found: Iterable[str]
) -> list[str]:
    """File names of a table's parts, in order."""
    if record.checksums is not None:
        return sorted(name.split("/")[1] for name in record.checksums if name.startswith(f"{table}/"))
    listed = [] if rows is None else [f"part-{number:05d}.parquet" for number in range(len(rows.get(table, [])))]
    if rows is not None and record.status == "complete":
        return listed
    # A running, killed or full-disk run may have a complete part that its list does not name yet.
    return sorted({*listed, *filter(PART.fullmatch, found)})


def _why_not(path: Path, record: RunRecord, rows: dict[str, list[int]] | None, table: str, name: str) -> str | None:
    """What is wrong with a part, as the rest of a sentence; None if it is sound."""
    part = path / table / name
    if not part.exists():
        return "is missing"
    try:
        if record.checksums is not None:
            return None if cached_checksum(part) == record.checksums[f"{table}/{name}"] else "is cut off or damaged"
        if not decodes(part, table):
            return "is cut off or damaged"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    number, listed = int(name[5:10]), [] if rows is None else rows.get(table, [])
    if number < len(listed) and pq.read_metadata(part).num_rows != listed[number]:
        return f"does not hold the {listed[number]} rows that {LIST} names"
    return None


def decodes(part: Path, table: str) -> bool:
    """Whether every value of a part can be read as its table's columns."""
    return _decodes(part, state_of(part), table)


@lru_cache(maxsize=REMEMBERED)
def _decodes(part: Path, state: State, table: str) -> bool:
    try:
        for batch in ds.dataset(str(part), schema=TABLES[table], format="parquet").to_batches():
            batch.validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return True
