"""List the runs in a folder from its index (`kvlab.trace.index`), without opening run folders."""

import logging
import os
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kvlab.common.atomic_write import replace_text, transaction
from kvlab.common.lab import lab, may_see
from kvlab.common.liveness import is_being_written
from kvlab.core import Bytes, Fraction, SlotCount, UserError
from kvlab.requests.compare import CompareRequest
from kvlab.requests.repeats import BatchName
from kvlab.trace.index import COLUMNS, RESULTS, STAMP, in_database, insert, refill, row_of, stamp_of
from kvlab.trace.record import FILE, read_record
from kvlab.trace.schema import Count, Name, RunRecord, RunStatus, Time, check_id

FOLDER = ".unfinished"


def save_request(root: Path, comparison_id: str, request: CompareRequest) -> None:
    """Store a request; raises UserError if the disk is full or not writable."""
    try:
        replace_text(_file(root, comparison_id), request.model_dump_json())
    except OSError as error:
        raise UserError(f"The folder of runs {root} cannot be written to ({error.strerror or error}).") from error


def remove_request(root: Path, comparison_id: str) -> None:
    """Remove the request of a finished comparison."""
    with suppress(OSError):
        _file(root, comparison_id).unlink(missing_ok=True)
        (Path(root) / FOLDER).rmdir()  # succeeds once it is empty


def load_request(root: Path, comparison_id: str) -> CompareRequest:
    """The request of an unfinished comparison; raises UserError if there is none of this id, or its file is damaged."""
    try:
        return CompareRequest.model_validate_json(_file(root, comparison_id).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"There is no unfinished comparison or batch {comparison_id!r} in {root}: list all with `kvlab runs ls`; "
            "complete ones cannot be resumed."
        ) from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{_file(root, comparison_id)} is damaged: request the comparison again.") from error


def equal_requests(root: Path, request: CompareRequest) -> Iterator[str]:
    """Ids of unfinished comparisons with an equal request."""
    for file in sorted((Path(root) / FOLDER).glob("*.json")):
        with suppress(UserError):
            if load_request(root, file.stem) == request:
                yield file.stem


def _file(root: Path, comparison_id: str) -> Path:
    return Path(root) / FOLDER / f"{check_id(comparison_id)}.json"


KILLED = "the worker was killed"
log = logging.getLogger(__name__)


class RunEntry(BaseModel):
    """Summary of one run for lists."""

    model_config = ConfigDict(frozen=True)

    run_id: Name
    comparison_id: Name
    created: Time
    status: RunStatus
    message: str
    title: str
    excerpt: str
    method: str
    label: str
    budget: SlotCount | Fraction | Bytes
    level: str
    model: str
    prompt_tokens: Count
    max_new_tokens: Count
    decode_tokens_per_second: float | None
    worker_pid: Count | None
    batch: BatchName | None = None
    number: Count | None = None  # of the repeat in its batch, from 1
    owner: str = ""
    private: bool = False


class ComparisonEntry(BaseModel):
    """The runs of one request, in creation order."""

    model_config = ConfigDict(frozen=True)

    comparison_id: str
    runs: tuple[RunEntry, ...]
    created: str
    title: str  # else the beginning of the prompt
    text: str  # the title without a repeat's number prefix
    owner: str  # the user who requested it; "" if unknown
    batch: str | None  # of which it is a repeat, if any
    number: int  # of the repeat in its batch, from 1; 0 outside batches
    status: RunStatus

    @classmethod
    def from_runs(cls, comparison_id: str, runs: Sequence[RunEntry]) -> "ComparisonEntry":
        """The entry of these runs, with what the first says of all."""
        first = runs[0]
        title = first.title or first.excerpt
        return cls(
            comparison_id=comparison_id,
            runs=tuple(runs),
            created=first.created,
            title=title,
            text=re.sub(r"^\d+ of \d+: ", "", title) if first.batch else title,
            owner=first.owner,
            batch=first.batch,
            number=first.number or 0,
            status=worst_status({run.status for run in runs}),
        )


def worst_status(found: set[RunStatus]) -> RunStatus:
    """Running while any run is; otherwise the worst final status."""
    ranked: tuple[RunStatus, ...] = ("running", "failed", "cancelled")
    return next((status for status in ranked if status in found), "complete")


def list_runs(
    root: Path, *, comparison_id: str | None = None, status: RunStatus | None = None, limit: int | None = None
) -> list[RunEntry]:
    """The runs under `root`, newest first.

    A running run whose process is gone, or whose record was damaged after indexing, is shown as failed. The folders
    take precedence over the index: copied runs are added, removed or renamed ones are left out. Also left out are runs
    whose row or record is invalid (`left_out` says why) and other users' private runs (`kvlab.common.lab`).
    """
    root = Path(root)
    if not root.is_dir():
        return []
    found, odd = in_database(root, _entries)
    if odd:  # the index is damaged or predates a validation rule, which SQLite cannot detect
        rebuild(root)
        found, _ = in_database(root, _entries)
    # Symbolic links to runs are only allowed outside a server.
    there = {item.name for item in os.scandir(root) if lab() is None or not item.is_symlink()}
    # Add unindexed run folders to the index.
    unknown = there - {entry.run_id for entry, _ in found}
    records = []
    for name in sorted(unknown):
        if (root / name / FILE).is_file():
            with suppress(UserError):  # `left_out` says why
                records.append(read_record(root / name))
    for record in sorted(records, key=lambda record: record.created):
        upsert(root, record)
    if bool(records):
        found, _ = in_database(root, _entries)
    wanted = [pair for pair in found if pair[0].run_id in there and comparison_id in (None, pair[0].comparison_id)]
    current = [_current(root, run, stamp) for run, stamp in wanted]
    visible = [entry for entry in current if may_see(entry.owner, entry.private)]
    return [entry for entry in visible if status in (None, entry.status)][:limit]


def _entries(database: sqlite3.Connection) -> tuple[list[tuple[RunEntry, int]], int]:
    """The valid rows with the stamps of their records, newest first, and the number of invalid rows."""
    rows = database.execute(
        f"SELECT {', '.join(COLUMNS)}, {STAMP} FROM runs ORDER BY created DESC, rowid DESC"
    ).fetchall()
    entries = []
    for row in rows:
        with suppress(ValidationError):
            entries.append((RunEntry(**dict(zip(COLUMNS, row[:-1], strict=True))), row[-1]))
    return entries, len(rows) - len(entries)


def list_comparisons(root: Path, limit: int | None = None) -> list[ComparisonEntry]:
    """The comparisons under `root`, newest first, each with its runs in creation order."""
    groups: dict[str, list[RunEntry]] = {}
    for entry in list_runs(root):
        groups.setdefault(entry.comparison_id, []).insert(0, entry)
    found = [ComparisonEntry.from_runs(name, runs) for name, runs in groups.items()]
    return found[:limit]


def by_batch(comparisons: Sequence[ComparisonEntry]) -> list[list[ComparisonEntry]]:
    """Group the repeats of a batch by number at the position of the newest; other comparisons stay single."""
    groups: dict[str, list[ComparisonEntry]] = {}
    for entry in comparisons:
        groups.setdefault(f"batch {entry.batch}" if entry.batch else entry.comparison_id, []).append(entry)
    return [sorted(group, key=lambda entry: entry.number) for group in groups.values()]


def list_repeats(root: Path, batch: str) -> list[ComparisonEntry]:
    """The comparisons of a batch by number; of duplicates, the one with most complete runs."""
    repeats = [entry for entry in reversed(list_comparisons(root)) if entry.batch == batch]
    # Sorting is stable: of those with as many complete runs, the newest comes last and is kept.
    repeats.sort(key=lambda entry: sum(run.status == "complete" for run in entry.runs))
    best = {entry.number: entry for entry in repeats}
    return [best[number] for number in sorted(best)]


def upsert(root: Path, record: RunRecord) -> None:
    """Write a run's current state to the index. Failures are only logged, because `run.json` is authoritative."""
    try:
        in_database(root, lambda database: insert(Path(root), database, record))
    except (sqlite3.Error, UserError, ValueError, OverflowError) as error:
        log.warning("the catalogue in %s could not be updated: %s", root, error)


def comparisons_with(root: Path, search_words: Sequence[str]) -> set[str]:
    """Ids of the comparisons whose prompt contains every word within its first `SEARCHED` characters, ignoring case."""
    if not Path(root).is_dir():
        return set()
    asked = [word.casefold() for word in search_words]
    where = " AND ".join(["instr(text, ?) > 0"] * len(asked)) or "1"
    question = f"SELECT comparison_id FROM prompts WHERE {where}"
    return {name for (name,) in in_database(root, lambda database: database.execute(question, asked).fetchall())}


def results(root: Path) -> dict[str, dict[str, object]]:
    """Cached results of runs by run id: the columns `RESULTS`."""
    if not Path(root).is_dir():
        return {}
    question = f"SELECT {', '.join(RESULTS)} FROM results"
    rows = in_database(root, lambda database: database.execute(question).fetchall())
    return {row[0]: dict(zip(RESULTS, row, strict=True)) for row in rows}


def keep_results(root: Path, rows: Sequence[dict[str, object]]) -> None:
    """Store results of runs in the index, each with the columns `RESULTS`."""
    insertion = f"INSERT OR REPLACE INTO results VALUES ({', '.join('?' * len(RESULTS))})"
    values = [[row[name] for name in RESULTS] for row in rows]
    in_database(root, lambda database: database.executemany(insertion, values))


def left_out(root: Path, listed: Collection[str]) -> list[str]:
    """One sentence per run folder that is not `listed` because its record cannot be read."""
    problems = []
    for item in sorted(os.scandir(root), key=lambda item: item.name) if Path(root).is_dir() else []:
        if item.name not in listed and item.is_dir() and (Path(item) / "run.json").exists():
            try:
                read_record(Path(item))
            except UserError as error:
                problems.append(str(error))
    return problems


def rebuild(root: Path) -> list[str]:
    """Rebuild the index from the run folders; returns one sentence per folder whose record cannot be read."""

    def again(database: sqlite3.Connection) -> list[str]:
        with transaction(database):
            return refill(Path(root), database)

    return in_database(root, again)


def _current(root: Path, entry: RunEntry, stamp: int) -> RunEntry:
    """The entry as its record is now, which may have changed, or ended, without telling the index.

    Failed if the record cannot be read, or if the process that wrote it is gone.
    """
    is_old = stamp_of(root, entry.run_id) != stamp
    if not is_old and not _was_killed(root, entry):
        return entry
    try:
        record = read_record(root / entry.run_id)
    except UserError as error:
        return entry.model_copy(update={"status": "failed", "message": str(error)})
    if is_old or record.status != "running":
        upsert(root, record)
    entry = RunEntry.model_validate(row_of(record))
    return entry.model_copy(update={"status": "failed", "message": KILLED}) if _was_killed(root, entry) else entry


def _was_killed(root: Path, entry: RunEntry) -> bool:
    """Whether a running run is not being written any more."""
    return entry.status == "running" and not is_being_written(root / entry.run_id, entry.worker_pid, entry.created)
