"""Slots of the workers that serve a queue, and the dashboards (keepers) that need them."""

from __future__ import annotations

import platform
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from kvlab.common.liveness import host_id, is_alive
from kvlab.jobs.queue_db import finish

HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 20.0
KILLED = (
    "The worker was killed while this job ran (often: not enough memory); the runs it saved are kept, and the job can "
    "be resumed."
)


@dataclass(frozen=True)
class WorkerSlot:
    """A worker's slot number, its own GPUs (empty: all), and those of the other workers."""

    number: int = 1
    devices: str = ""
    others: tuple[str, ...] = ()


def take_slot(connection: sqlite3.Connection, pid: int, place: int = 1, devices: str = "") -> bool:
    """Make this process the worker of a slot; False if another one is alive there. Call inside a transaction."""
    if live_worker(connection, place) not in (None, pid):
        return False
    connection.execute(
        "INSERT OR REPLACE INTO workers (place, pid, host, since, heartbeat, devices) VALUES (?, ?, ?, ?, ?, ?)",
        (place, pid, host_id(), datetime.now(UTC).isoformat(), time.time(), devices),
    )
    return True


def leave_slot(connection: sqlite3.Connection, pid: int) -> None:
    """Give up the slot of a worker that ends."""
    connection.execute("DELETE FROM workers WHERE pid = ? AND host = ?", (pid, host_id()))


def heartbeat(connection: sqlite3.Connection, pid: int) -> bool:
    """Record this worker's heartbeat; False if its slot was given to another."""
    done = connection.execute(
        "UPDATE workers SET heartbeat = ? WHERE pid = ? AND host = ?", (time.time(), pid, host_id())
    )
    return done.rowcount > 0


def live_workers(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """Rows of the workers that are alive, by slot."""
    return [row for row in connection.execute("SELECT * FROM workers ORDER BY place").fetchall() if _is_alive(row)]


def live_worker(connection: sqlite3.Connection, place: int | None = None) -> int | None:
    """Process id of the worker of a slot, or of the first; None if it is missing or dead."""
    pids = [row["pid"] for row in live_workers(connection) if place in (None, row["place"])]
    return pids[0] if pids else None


def _is_alive(row: sqlite3.Row) -> bool:
    # Process ids of another machine or container are meaningless here, so the heartbeat decides. Queues of version 1
    # store the machine alone.
    if row["host"] in (host_id(), platform.node()):
        return is_alive(row["pid"], row["since"])
    return time.time() - row["heartbeat"] < SILENT_SECONDS


def add_keeper(connection: sqlite3.Connection, pid: int) -> None:
    """Record that this process needs the folder's workers; a dashboard repeats it."""
    now = datetime.now(UTC).isoformat(), time.time()
    connection.execute(
        "INSERT INTO keepers (pid, host, since, heartbeat) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pid, host) DO UPDATE SET heartbeat = excluded.heartbeat",
        (pid, host_id(), *now),
    )


def remove_keeper(connection: sqlite3.Connection, pid: int) -> None:
    """Record that this process needs no worker any more."""
    connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (pid, host_id()))


def has_keeper(connection: sqlite3.Connection) -> bool:
    """Whether any live process needs the workers; dead ones are removed."""
    for row in connection.execute("SELECT * FROM keepers").fetchall():
        if _is_alive(row):
            return True
        connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (row["pid"], row["host"]))
    return False


def fail_orphans(connection: sqlite3.Connection) -> None:
    """Mark running jobs whose worker is gone as failed."""
    alive = {(row["pid"], host) for row in live_workers(connection) for host in (row["host"], "")}
    question = "SELECT job_id, worker_pid, worker_host FROM jobs WHERE state = 'running'"
    for row in connection.execute(question).fetchall():
        if (row["worker_pid"], row["worker_host"]) not in alive:
            finish(connection, row["job_id"], "failed", KILLED)
