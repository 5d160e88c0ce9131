"""The SQLite index of a runs folder, rebuilt from the run folders if damaged, or kept in memory if nothing can be
written."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvlab.common.atomic_write import transaction, write_ahead
from kvlab.core.errors import UserError
from kvlab.trace.record import read_record
from kvlab.trace.schema import RunRecord

Result = TypeVar("Result")

FILE = "catalogue.sqlite"
EXCERPT = 160
SEARCHED = 20_000  # characters of a prompt that are searchable
COLUMNS = (
    "run_id", "comparison_id", "created", "status", "message", "title", "excerpt", "method", "label", "budget",
    "level", "model", "prompt_tokens", "max_new_tokens", "decode_tokens_per_second", "worker_pid", "batch", "number",
    "owner", "private",
)  # fmt: skip
STAMP = "stamp"  # modification time of the row's record
RESULTS = ("run_id", "basis", "verdict", "mean_kl", "top1_agreement", "live_ratio", "bytes")
VERSION = 5  # of the tables; an index of another version is rebuilt
# SQLite errors caused by the folder or by concurrent use; all others mean a damaged index.
NOT_ITS_FAULT = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
)  # fmt: skip
# Errors of a read-only folder or full disk, where an index in memory is used.
CANNOT_WRITE = (
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
)  # fmt: skip
MOST_IN_MEMORY = 4
AGAIN_SECONDS = 30.0
log = logging.getLogger(__name__)
_memory: dict[Path, _InMemory] = {}
_memory_lock = threading.Lock()


@dataclass
class _InMemory:
    """In-memory index of a folder that cannot hold one, and the folder state it reflects."""

    connection: sqlite3.Connection
    lock: threading.RLock
    stamp: int = -1
    until: float = 0.0  # time of the next attempt to use the disk


def in_database(root: Path, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """Run `work` on the index, which is rebuilt from the run folders if damaged.

    Raises UserError if the index cannot be opened, read or written.
    """
    root = Path(root)
    damage = ""
    if (index := _memory.get(root)) is not None and time.monotonic() < index.until:
        return _in_memory(root, work)
    for _ in range(2):
        try:
            with closing(_open(root)) as connection:
                result = work(connection)
            _memory.pop(root, None)  # writable again
            return result
        except sqlite3.DatabaseError as error:
            # Errors from Python itself, such as invalid UTF-8, have no SQLite code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in CANNOT_WRITE:
                return _in_memory(root, work, tried=True)
            if code in NOT_ITS_FAULT:
                raise UserError(
                    f"The index of runs in {root} cannot be opened ({error}): is the folder writable?"
                ) from error
            log.warning("the catalogue in %s is damaged (%s) and is rebuilt from the folders", root, str(error))
            damage = str(error)  # keep only the text: the exception would keep the connection's statements and locks
        for suffix in ("", "-wal", "-shm"):
            (root / (FILE + suffix)).unlink(missing_ok=True)
    raise UserError(f"The index of runs in {root} cannot be rebuilt ({damage}): remove {FILE} there.")


def index_note(root: Path) -> str:
    """A sentence if the index is kept in memory because the folder is not writable; else ""."""
    if Path(root) not in _memory and os.access(root, os.W_OK):
        return ""
    return (
        "This folder of runs is not writable (read-only, or the disk is full): you can view it, but nothing can be "
        "run, renamed or deleted."
    )


def memory_changes(root: Path) -> int:
    """Change counter of an in-memory index, which has no modification time; 0 for others."""
    index = _memory.get(Path(root))
    return 0 if index is None else index.connection.total_changes


def _in_memory(root: Path, work: Callable[[sqlite3.Connection], Result], tried: bool = False) -> Result:
    """Run `work` on an in-memory index, rebuilt when the folder changes."""
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
                refill(root, index.connection, anew=True)
            index.stamp = stamp
        return work(index.connection)


def refill(root: Path, database: sqlite3.Connection, anew: bool = False) -> list[str]:
    """Fill the index with all runs; one sentence per folder whose record could not be read. `anew`: with new tables."""
    if anew:
        for table in ("runs", "prompts", "results"):
            database.execute(f"DROP TABLE IF EXISTS {table}")
        database.execute(f"CREATE TABLE runs ({', '.join(COLUMNS)}, {STAMP}, PRIMARY KEY (run_id))")
        database.execute("CREATE TABLE prompts (comparison_id PRIMARY KEY, text)")
        database.execute(f"CREATE TABLE results ({', '.join(RESULTS)}, PRIMARY KEY (run_id))")
    records = []
    problems = []
    for file in sorted(root.glob("*/run.json")):
        try:
            records.append(read_record(file.parent))
        except UserError as error:
            problems.append(str(error))
    database.execute("DELETE FROM runs")
    for record in sorted(records, key=lambda record: record.created):
        insert(root, database, record)
    return problems


def insert(root: Path, database: sqlite3.Connection, record: RunRecord) -> None:
    """Write a run's current state to the index."""
    fields = row_of(record) | {STAMP: stamp_of(root, record.run_id)}
    changes = ", ".join(f"{name} = excluded.{name}" for name in fields)
    database.execute(
        f"INSERT INTO runs ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))}) "
        f"ON CONFLICT (run_id) DO UPDATE SET {changes}",
        [*fields.values()],
    )
    text = record.prompt[:SEARCHED].casefold()
    database.execute("INSERT OR REPLACE INTO prompts VALUES (?, ?)", [record.comparison_id, text])


def row_of(record: RunRecord) -> dict[str, object]:
    """The columns `COLUMNS` of a record."""
    words = " ".join(record.prompt[: 4 * EXCERPT].split())
    excerpt = words if len(words) <= EXCERPT else words[: EXCERPT - 1] + "…"
    fields = record.model_dump() | {"excerpt": excerpt, "model": record.model.name}
    fields |= {"batch": record.repeat and record.repeat.batch, "number": record.repeat and record.repeat.number}
    return {name: fields[name] for name in COLUMNS}


def stamp_of(root: Path, run_id: str) -> int:
    """Modification time of a run's record in nanoseconds; 0 if there is none."""
    try:
        return os.stat(root / run_id / "run.json").st_mtime_ns
    except OSError:
        return 0


def _open(root: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(root / FILE, timeout=30, isolation_level=None)
    asks = "PRAGMA user_version"
    try:
        write_ahead(connection)
        if connection.execute(asks).fetchone()[0] != VERSION:
            with transaction(connection):
                if connection.execute(asks).fetchone()[0] != VERSION:  # another process may have created it meanwhile
                    refill(root, connection, anew=True)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection
