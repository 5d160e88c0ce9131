"""Who serves a queue and who wants it served: the places of workers, and the dashboards that keep them."""

from __future__ import annotations

import platform
import sqlite3
import time
from datetime import UTC, datetime

from kvlab.common.liveness import is_alive, this_place
from kvlab.jobs.queue_db import finish

HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 20.0
KILLED = (
    "The worker was killed while this job ran (often: not enough memory); the runs it saved are kept, and the job can "
    "go on from them."
)


def take_place(connection: sqlite3.Connection, pid: int, place: int = 1, devices: str = "") -> bool:
    """Make this process the worker of a place; False when another one lives there. Call inside a transaction."""
    if live_worker(connection, place) not in (None, pid):
        return False
    connection.execute(
        "INSERT OR REPLACE INTO workers (place, pid, host, since, heartbeat, devices) VALUES (?, ?, ?, ?, ?, ?)",
        (place, pid, this_place(), datetime.now(UTC).isoformat(), time.time(), devices),
    )
    return True


def leave_place(connection: sqlite3.Connection, pid: int) -> None:
    """This worker serves no longer."""
    connection.execute("DELETE FROM workers WHERE pid = ? AND host = ?", (pid, this_place()))


def beats(connection: sqlite3.Connection, pid: int) -> bool:
    """This worker says that it lives; False where its place was given to another."""
    done = connection.execute(
        "UPDATE workers SET heartbeat = ? WHERE pid = ? AND host = ?", (time.time(), pid, this_place())
    )
    return done.rowcount > 0


def live_workers(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """The rows of the workers that live, by their place."""
    return [row for row in connection.execute("SELECT * FROM workers ORDER BY place").fetchall() if _lives(row)]


def live_worker(connection: sqlite3.Connection, place: int | None = None) -> int | None:
    """The process id of the worker of a place, or of the first; None when there is none or it died."""
    found = [row["pid"] for row in live_workers(connection) if place in (None, row["place"])]
    return found[0] if found else None


def _lives(row: sqlite3.Row) -> bool:
    # Process ids of another machine or container mean nothing here: there the heartbeat decides. Queues of version 1
    # name the machine alone.
    if row["host"] in (this_place(), platform.node()):
        return is_alive(row["pid"], row["since"])
    return time.time() - row["heartbeat"] < SILENT_SECONDS


def keep(connection: sqlite3.Connection, pid: int) -> None:
    """This process wants the folder's workers to live; a dashboard says so again and again."""
    now = datetime.now(UTC).isoformat(), time.time()
    connection.execute(
        "INSERT INTO keepers (pid, host, since, heartbeat) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pid, host) DO UPDATE SET heartbeat = excluded.heartbeat",
        (pid, this_place(), *now),
    )


def release(connection: sqlite3.Connection, pid: int) -> None:
    """This process wants no worker any more."""
    connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (pid, this_place()))


def is_kept(connection: sqlite3.Connection) -> bool:
    """Whether any process that lives wants the workers; those that died are forgotten."""
    for row in connection.execute("SELECT * FROM keepers").fetchall():
        if _lives(row):
            return True
        connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (row["pid"], row["host"]))
    return False


def bury_orphans(connection: sqlite3.Connection) -> None:
    """Mark running jobs whose worker is gone as failed."""
    alive = {(row["pid"], host) for row in live_workers(connection) for host in (row["host"], "")}
    question = "SELECT job_id, worker_pid, worker_host FROM jobs WHERE state = 'running'"
    for row in connection.execute(question).fetchall():
        if (row["worker_pid"], row["worker_host"]) not in alive:
            finish(connection, row["job_id"], "failed", KILLED)
