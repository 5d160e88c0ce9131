"""The queue's one SQLite file, `<runs>/.jobs/queue.sqlite`: jobs, the worker's place, and who comes next.

Where the runs are on a shared disk, the file lies on this machine's own (`kvlab.jobs.own_disk`).
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kvlab.errors import UserError
from kvlab.jobs.own_disk import queue_folder
from kvlab.trace.catalogue import NOT_ITS_FAULT, is_alive
from kvlab.trace.transactions import PATIENCE_SECONDS, transaction, write_ahead

FOLDER = ".jobs"
HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 20.0
ASIDE_RUNS = 8  # kept of looks before a comparison
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT UNIQUE NOT NULL,
    session TEXT NOT NULL,
    title TEXT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    message TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    worker_pid INTEGER,
    cancel INTEGER NOT NULL DEFAULT 0,
    progress TEXT,
    run_ids TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state);
CREATE TABLE IF NOT EXISTS worker (
    place INTEGER PRIMARY KEY CHECK (place = 1),
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since TEXT NOT NULL,
    heartbeat REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS keepers (
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since TEXT NOT NULL,
    heartbeat REAL NOT NULL,
    PRIMARY KEY (pid, host)
);
"""


@contextmanager
def database(root: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the queue of this runs folder, made if need be; statements commit one by one.

    Raises:
        UserError: the file cannot be read or written, is held by another process for too long, or is damaged. Any other
            error of the statements inside stays as it is.
    """
    folder = Path(root) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder = queue_folder(root, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        connection = _open(folder / "queue.sqlite")
    except OSError as error:
        raise UserError(_unusable(folder, error)) from error
    except sqlite3.DatabaseError as error:
        raise UserError(_why(folder, error) or _unusable(folder, error)) from error
    with closing(connection):
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            if (sentence := _why(folder, error)) is None:
                raise
            raise UserError(sentence) from error


def _open(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=PATIENCE_SECONDS, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        write_ahead(connection)
        connection.executescript(SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _why(folder: Path, error: sqlite3.DatabaseError) -> str | None:
    """What is wrong with the file, by SQLite's own code; None where the statement is at fault."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"The queue in {folder} is held by another process ({error}): try again."
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return f"The queue {folder}/queue.sqlite is damaged: delete it; the runs are not touched."
    return _unusable(folder, error) if code in NOT_ITS_FAULT else None


def _unusable(folder: Path, error: Exception) -> str:
    return f"The queue in {folder} cannot be used ({error}): is the disk full or not writable?"


def log_path(root: Path, job_id: str) -> Path:
    return Path(root) / FOLDER / f"{job_id}.log"


def clear_aside(folder: Path, keep: int = ASIDE_RUNS) -> None:
    """Remove all but the newest runs of requests that were `aside`: nobody looks at those for long, and none is listed.

    A run that another process still reads stays readable there: its files are open.
    """
    runs = [path.parent for path in Path(folder).glob("*/run.json")]
    newest = sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def queued_in_turn(connection: sqlite3.Connection) -> list[str]:
    """Ids of the waiting jobs in the order they will run: the session served longest ago is next."""
    served = dict(connection.execute("SELECT session, MAX(started) FROM jobs WHERE started IS NOT NULL GROUP BY 1"))
    waiting: dict[str, deque[tuple[int, str]]] = {}
    for row in connection.execute("SELECT number, job_id, session FROM jobs WHERE state = 'queued' ORDER BY number"):
        waiting.setdefault(row["session"], deque()).append((row["number"], row["job_id"]))
    order = []
    moment = max(served.values(), default=0.0)
    while waiting:
        session = min(waiting, key=lambda name: (served.get(name, 0.0), waiting[name][0]))
        order.append(waiting[session].popleft()[1])
        served[session] = moment = moment + 1
        if not waiting[session]:
            del waiting[session]
    return order


def claim(connection: sqlite3.Connection, pid: int) -> sqlite3.Row | None:
    """The next job, now running under this worker; None when nobody waits."""
    with transaction(connection):
        waiting = queued_in_turn(connection)
        if not waiting:
            return None
        connection.execute(
            "UPDATE jobs SET state = 'running', worker_pid = ?, started = ? WHERE job_id = ?",
            (pid, time.time(), waiting[0]),
        )
        return connection.execute("SELECT * FROM jobs WHERE job_id = ?", (waiting[0],)).fetchone()


def finish(connection: sqlite3.Connection, job_id: str, state: str, message: str = "") -> None:
    """Record how a job ended, unless it has ended already."""
    connection.execute(
        "UPDATE jobs SET state = ?, message = ?, finished = ? WHERE job_id = ? AND state IN ('queued', 'running')",
        (state, message, time.time(), job_id),
    )


def take_place(connection: sqlite3.Connection, pid: int) -> bool:
    """Make this process the worker; False when another one lives. Call inside a transaction."""
    if live_worker(connection) not in (None, pid):
        return False
    connection.execute(
        "INSERT OR REPLACE INTO worker (place, pid, host, since, heartbeat) VALUES (1, ?, ?, ?, ?)",
        (pid, platform.node(), datetime.now(UTC).isoformat(), time.time()),
    )
    return True


def live_worker(connection: sqlite3.Connection) -> int | None:
    """The worker's process id; None when there is none or it died."""
    row = connection.execute("SELECT * FROM worker").fetchone()
    return row["pid"] if row is not None and _lives(row) else None


def _lives(row: sqlite3.Row) -> bool:
    # Process ids of another machine or container mean nothing here: there the heartbeat decides.
    if row["host"] == platform.node():
        return is_alive(row["pid"], row["since"])
    return time.time() - row["heartbeat"] < SILENT_SECONDS


def keep(connection: sqlite3.Connection, pid: int) -> None:
    """This process wants the folder's worker to live; a dashboard says so again and again."""
    now = datetime.now(UTC).isoformat(), time.time()
    connection.execute(
        "INSERT INTO keepers (pid, host, since, heartbeat) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pid, host) DO UPDATE SET heartbeat = excluded.heartbeat",
        (pid, platform.node(), *now),
    )


def release(connection: sqlite3.Connection, pid: int) -> None:
    """This process wants no worker any more."""
    connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (pid, platform.node()))


def is_kept(connection: sqlite3.Connection) -> bool:
    """Whether any process that lives wants the worker; those that died are forgotten."""
    for row in connection.execute("SELECT * FROM keepers").fetchall():
        if _lives(row):
            return True
        connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (row["pid"], row["host"]))
    return False


def bury_orphans(connection: sqlite3.Connection) -> None:
    """Mark running jobs whose worker is gone as failed."""
    alive = live_worker(connection)
    for row in connection.execute("SELECT job_id, worker_pid FROM jobs WHERE state = 'running'").fetchall():
        if row["worker_pid"] != alive:
            message = "The worker was killed while this job ran (often: not enough memory); the runs it saved are kept."
            finish(connection, row["job_id"], "failed", message)
