"""One small index of the runs in a folder, rebuilt from the folders at any time; pages read it, never the folders."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kvlab.errors import UserError
from kvlab.lab.person import may_see
from kvlab.lab.settings import lab
from kvlab.repeats import BatchName
from kvlab.requests import Bytes, Fraction, Slots
from kvlab.trace.alive import is_written
from kvlab.trace.record import read_record
from kvlab.trace.schema import Count, Name, RunRecord, RunStatus, Time
from kvlab.trace.transactions import transaction, write_ahead

Result = TypeVar("Result")

FILE = "catalogue.sqlite"
KILLED = "the worker was killed"
EXCERPT = 160
SEARCHED = 20_000  # signs of a prompt that are searched
COLUMNS = (
    "run_id", "comparison_id", "created", "status", "message", "title", "excerpt", "method", "label", "budget",
    "level", "model", "prompt_tokens", "max_new_tokens", "decode_tokens_per_second", "worker_pid", "batch", "number",
    "owner", "private",
)  # fmt: skip
RESULTS = ("run_id", "basis", "verdict", "mean_kl", "top1_agreement", "live_ratio", "bytes")
VERSION = 4  # of the tables: an index of another version is made again
# What SQLite says of a folder or a moment that does not let the index be used; anything else it says of a damaged one.
NOT_ITS_FAULT = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
)  # fmt: skip
# What it says where the folder is read-only or the disk full: an index in memory does then.
CANNOT_WRITE = (
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
)  # fmt: skip
MOST_IN_MEMORY, AGAIN_SECONDS = 4, 30.0
log = logging.getLogger(__name__)
_memory: dict[Path, _InMemory] = {}
_memory_lock = threading.Lock()


@dataclass
class _InMemory:
    """The index of a folder that cannot hold one, in this process alone, and the folder's state that it is of."""

    connection: sqlite3.Connection
    lock: threading.RLock
    stamp: int = -1
    until: float = 0.0  # the disk is tried again then: every try leaves traces on it


class RunEntry(BaseModel):
    """What a list shows of one run."""

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
    budget: Slots | Fraction | Bytes
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
    """The runs made by one request, in the order they were made."""

    model_config = ConfigDict(frozen=True)

    comparison_id: str
    runs: tuple[RunEntry, ...]

    @property
    def created(self) -> str:
        return self.runs[0].created

    @property
    def title(self) -> str:
        """The title given, or else the beginning of the prompt."""
        return self.runs[0].title or self.runs[0].excerpt

    @property
    def owner(self) -> str:
        """Who asked for it; empty where nobody was asked."""
        return self.runs[0].owner

    @property
    def text(self) -> str:
        """The title without the number that a repeat's begins with."""
        return re.sub(r"^\d+ of \d+: ", "", self.title) if self.batch else self.title

    @property
    def batch(self) -> str | None:
        """The batch it is a repeat of."""
        return self.runs[0].batch

    @property
    def number(self) -> int:
        """Of the repeat in its batch, from 1; 0 outside one."""
        return self.runs[0].number or 0

    @property
    def status(self) -> RunStatus:
        return worst_status({run.status for run in self.runs})


def worst_status(found: set[RunStatus]) -> RunStatus:
    """Running while any run is; otherwise the worst ending of the runs."""
    ranked: tuple[RunStatus, ...] = ("running", "failed", "cancelled")
    return next((status for status in ranked if status in found), "complete")


def list_runs(
    root: Path, *, comparison_id: str | None = None, status: RunStatus | None = None, limit: int | None = None
) -> list[RunEntry]:
    """The runs under `root`, newest first. A running run whose process is gone is shown as failed.

    A run whose folder is gone is left out, and so is one whose row or record no list can show, or that is private to
    somebody else than the person who acts (`kvlab.lab.person`).
    """
    root = Path(root)
    if not root.is_dir():
        return []
    found, odd = in_database(root, _entries)
    if odd:  # the index is damaged, or older than a rule for records, where SQLite cannot see it
        rebuild(root)
        found, _ = in_database(root, _entries)
    # On a server a run lies in the folder itself; whoever works alone may keep some elsewhere and link to them.
    there = {item.name for item in os.scandir(root) if lab() is None or not item.is_symlink()}
    wanted = [run for run in found if run.run_id in there and comparison_id in (None, run.comparison_id)]
    wanted = [run for run in wanted if may_see(run.owner, run.private)]
    verified = [_verified(root, entry) for entry in wanted]
    return [entry for entry in verified if status in (None, entry.status)][:limit]


def _entries(database: sqlite3.Connection) -> tuple[list[RunEntry], int]:
    """The rows, newest first, and how many more there are that no record makes."""
    rows = database.execute(f"SELECT {', '.join(COLUMNS)} FROM runs ORDER BY created DESC, rowid DESC").fetchall()
    entries = []
    for row in rows:
        with suppress(ValidationError):
            entries.append(RunEntry(**dict(zip(COLUMNS, row, strict=True))))
    return entries, len(rows) - len(entries)


def list_comparisons(root: Path, limit: int | None = None) -> list[ComparisonEntry]:
    """The comparisons under `root`, newest first, each with its runs in the order they were made."""
    groups: dict[str, list[RunEntry]] = {}
    for entry in list_runs(root):
        groups.setdefault(entry.comparison_id, []).insert(0, entry)
    found = [ComparisonEntry(comparison_id=name, runs=tuple(runs)) for name, runs in groups.items()]
    return found[:limit]


def by_batch(comparisons: Sequence[ComparisonEntry]) -> list[list[ComparisonEntry]]:
    """The comparisons in their order, but the repeats of a batch together, by number, where its newest stands."""
    groups: dict[str, list[ComparisonEntry]] = {}
    for entry in comparisons:
        groups.setdefault(f"batch {entry.batch}" if entry.batch else entry.comparison_id, []).append(entry)
    return [sorted(group, key=lambda entry: entry.number) for group in groups.values()]


def list_repeats(root: Path, batch: str) -> list[ComparisonEntry]:
    """The comparisons of a batch by their number; where one was made anew, the one with most complete runs."""
    best: dict[int, ComparisonEntry] = {}
    for entry in reversed([entry for entry in list_comparisons(root) if entry.batch == batch]):
        known = best.get(entry.number)
        if known is None or _complete(entry) >= _complete(known):
            best[entry.number] = entry
    return [best[number] for number in sorted(best)]


def _complete(entry: ComparisonEntry) -> int:
    return sum(run.status == "complete" for run in entry.runs)


def upsert(root: Path, record: RunRecord) -> None:
    """Put one run's present state into the index. A failure is logged only: `run.json` holds the truth."""
    try:
        in_database(root, lambda database: _insert(database, record))
    except (sqlite3.Error, UserError, ValueError, OverflowError) as error:
        log.warning("the catalogue in %s could not be updated: %s", root, error)


def comparisons_with(root: Path, words: Sequence[str]) -> set[str]:
    """The ids of the comparisons whose prompt holds every word, among its first `SEARCHED` signs; case aside."""
    if not Path(root).is_dir():
        return set()
    asked = [word.casefold() for word in words]
    where = " AND ".join(["instr(text, ?) > 0"] * len(asked)) or "1"
    question = f"SELECT comparison_id FROM prompts WHERE {where}"
    return {name for (name,) in in_database(root, lambda database: database.execute(question, asked).fetchall())}


def results(root: Path) -> dict[str, dict[str, object]]:
    """What is known of how runs came out, by run id: the columns `RESULTS`."""
    if not Path(root).is_dir():
        return {}
    question = f"SELECT {', '.join(RESULTS)} FROM results"
    rows = in_database(root, lambda database: database.execute(question).fetchall())
    return {row[0]: dict(zip(RESULTS, row, strict=True)) for row in rows}


def keep_results(root: Path, rows: Sequence[dict[str, object]]) -> None:
    """Put how runs came out into the index, each with the columns `RESULTS`."""
    places = ", ".join("?" * len(RESULTS))
    values = [[row[name] for name in RESULTS] for row in rows]
    in_database(
        root, lambda database: database.executemany(f"INSERT OR REPLACE INTO results VALUES ({places})", values)
    )


def left_out(root: Path, listed: Collection[str]) -> list[str]:
    """One sentence for each run folder that is not among those `listed`, as its record cannot be read."""
    said = []
    for item in sorted(os.scandir(root), key=lambda item: item.name) if Path(root).is_dir() else []:
        if item.name not in listed and item.is_dir() and (Path(item) / "run.json").exists():
            try:
                read_record(Path(item))
            except UserError as error:
                said.append(str(error))
    return said


def rebuild(root: Path) -> list[str]:
    """Read every run folder again and replace the index by what they say.

    Returns one sentence for each folder whose `run.json` could not be read.
    """

    def refill(database: sqlite3.Connection) -> list[str]:
        with transaction(database):
            return _refill(Path(root), database)

    return in_database(root, refill)


def _refill(root: Path, database: sqlite3.Connection) -> list[str]:
    records, problems = [], []
    for file in sorted(root.glob("*/run.json")):
        try:
            records.append(read_record(file.parent))
        except UserError as error:
            problems.append(str(error))
    database.execute("DELETE FROM runs")
    for record in sorted(records, key=lambda record: record.created):
        _insert(database, record)
    return problems


def _insert(database: sqlite3.Connection, record: RunRecord) -> None:
    fields = record.model_dump() | {"excerpt": _excerpt(record.prompt), "model": record.model.name}
    fields |= {"batch": record.repeat and record.repeat.batch, "number": record.repeat and record.repeat.number}
    changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
    database.execute(
        f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
        f"ON CONFLICT (run_id) DO UPDATE SET {changes}",
        [fields[name] for name in COLUMNS],
    )
    text = record.prompt[:SEARCHED].casefold()
    database.execute("INSERT OR REPLACE INTO prompts VALUES (?, ?)", [record.comparison_id, text])


def _excerpt(prompt: str) -> str:
    words = " ".join(prompt[: 4 * EXCERPT].split())
    return words if len(words) <= EXCERPT else words[: EXCERPT - 1] + "…"


def _verified(root: Path, entry: RunEntry) -> RunEntry:
    """The entry as it is now: an unfinished one may have ended without telling the index."""
    if entry.status != "running" or is_written(root / entry.run_id, entry.worker_pid, entry.created):
        return entry
    try:
        record = read_record(root / entry.run_id)
    except UserError as error:
        return entry.model_copy(update={"status": "failed", "message": str(error)})
    if record.status == "running":
        return entry.model_copy(update={"status": "failed", "message": KILLED})
    upsert(root, record)
    return entry.model_copy(update={"status": record.status, "message": record.message})


def in_database(root: Path, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """What `work` returns for the index, which is made again from the folders where it turns out to be damaged.

    Raises:
        UserError: the folder does not let the index be opened, read or written.
    """
    root, damage = Path(root), ""
    if (index := _memory.get(root)) is not None and time.monotonic() < index.until:
        return _in_memory(root, work)
    for _ in range(2):
        try:
            with closing(_open(root)) as connection:
                result = work(connection)
            _memory.pop(root, None)  # it can be written to again
            return result
        except sqlite3.DatabaseError as error:
            # Python's own complaints, as of text that is no UTF-8, carry no code of SQLite's.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in CANNOT_WRITE:
                return _in_memory(root, work, tried=True)
            if code in NOT_ITS_FAULT:
                raise UserError(
                    f"The index of runs in {root} cannot be opened ({error}): is the folder writable?"
                ) from error
            log.warning("the catalogue in %s is damaged (%s) and is made again from the folders", root, str(error))
            damage = str(error)  # kept itself, it would keep the connection's statements, and their locks
        for suffix in ("", "-wal", "-shm"):
            (root / (FILE + suffix)).unlink(missing_ok=True)
    raise UserError(f"The index of runs in {root} cannot be made ({damage}): remove {FILE} there.")


def index_note(root: Path) -> str:
    """A sentence where the index of this folder is kept in memory; else empty."""
    if Path(root) not in _memory:
        return ""
    return (
        "This folder of runs cannot be written to (read-only, or its disk is full): it can be looked at, its list is "
        "kept in memory, and nothing can be run, renamed or deleted."
    )


def memory_changes(root: Path) -> int:
    """Counts changes of an index that is kept in memory, which no file's time tells of; 0 for others."""
    index = _memory.get(Path(root))
    return 0 if index is None else index.connection.total_changes


def _in_memory(root: Path, work: Callable[[sqlite3.Connection], Result], tried: bool = False) -> Result:
    """What `work` returns for an index that is made of the folders whenever one came or went."""
    with _memory_lock:
        if root not in _memory:
            while len(_memory) >= MOST_IN_MEMORY:
                _memory.pop(next(iter(_memory)))
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            _memory[root] = _InMemory(connection, threading.RLock())
        index = _memory[root]
    with index.lock:
        index.until = time.monotonic() + AGAIN_SECONDS if tried else index.until
        if (stamp := root.stat().st_mtime_ns) != index.stamp:
            with transaction(index.connection):
                _tables(index.connection)
                _refill(root, index.connection)
            index.stamp = stamp
        return work(index.connection)


def _open(root: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(root / FILE, timeout=30, isolation_level=None)
    try:
        write_ahead(connection)
        if not _is_current(connection):
            with transaction(connection):
                _create(root, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(root: Path, connection: sqlite3.Connection) -> None:
    # Another process may have done it while this one waited for the lock.
    if _is_current(connection):
        return
    _tables(connection)
    _refill(root, connection)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _tables(connection: sqlite3.Connection) -> None:
    for table in ("runs", "prompts", "results"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.execute(f"CREATE TABLE runs ({', '.join(COLUMNS)}, PRIMARY KEY (run_id))")
    connection.execute("CREATE TABLE prompts (comparison_id PRIMARY KEY, text)")
    connection.execute(f"CREATE TABLE results ({', '.join(RESULTS)}, PRIMARY KEY (run_id))")


def _is_current(connection: sqlite3.Connection) -> bool:
    return connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
