"""The administrator's overview: workers, jobs and their owners, users with their limits, memory and disk."""

from __future__ import annotations

import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvlab.common.liveness import host_id
from kvlab.core.errors import UserError
from kvlab.jobs import queue_db, worker_slots
from kvlab.jobs.access_check import minutes_used
from kvlab.jobs.client import JobStatus, list_jobs
from kvlab.jobs.disk_usage import bytes_by_owner, folder_usage
from kvlab.planning.machine import cards
from kvlab.server.quotas import DiskUsage, Limits, limits_of
from kvlab.server.users import Role, require

WHAT = "administer the queue"
MOST_OPEN = 500


@dataclass(frozen=True)
class WorkerState:
    """One worker; `bytes` of memory is None on another machine."""

    place: int
    pid: int
    devices: str
    here: bool
    bytes: int | None
    job: JobStatus | None


@dataclass(frozen=True)
class UserUsage:
    """One user's jobs, minutes of compute in 24 hours, bytes of results, and limits."""

    name: str
    running: int
    waiting: int
    minutes: float
    bytes: int
    limits: Limits


@dataclass(frozen=True)
class MemoryUsage:
    """Used and total bytes of one of this machine's memories."""

    name: str
    used: int
    total: int


@dataclass(frozen=True)
class Overview:
    """The server's current state, open jobs in the order in which they run."""

    workers: tuple[WorkerState, ...]
    jobs: tuple[JobStatus, ...]
    people: tuple[UserUsage, ...]
    memory: tuple[MemoryUsage, ...]
    room: DiskUsage


def overview(root: Path) -> Overview:
    """Collect the current state.

    Raises UserError if the acting user is no administrator, or the queue cannot be used.
    """
    require(Role.ADMINISTER, WHAT)
    jobs = sorted(list_jobs(root, open_only=True, limit=MOST_OPEN), key=lambda job: (job.position or 0, job.created))
    with queue_db.database(root) as connection:
        workers = [_worker(row, jobs) for row in worker_slots.live_workers(connection)]
        sizes = bytes_by_owner(connection, root)
        owners = {row["owner"] for row in connection.execute("SELECT DISTINCT owner FROM jobs")}
        people = [
            UserUsage(
                name, _count(jobs, name, "running"), _count(jobs, name, "queued"), minutes_used(connection, name),
                sizes.get(name, 0), limits_of(name),
            )
            for name in sorted(owners | sizes.keys())
        ]  # fmt: skip
    return Overview(tuple(workers), tuple(jobs), tuple(people), tuple(_memory()), folder_usage(root, measured=True))


def stop_worker(root: Path, place: int) -> None:
    """Stop the worker of a slot: its job is marked cancelled and keeps what it saved, and a new worker starts.

    Raises UserError if the acting user is no administrator, or the worker is gone or on another machine.
    """
    require(Role.ADMINISTER, WHAT)
    with queue_db.database(root) as connection:
        row = next((row for row in worker_slots.live_workers(connection) if row["place"] == place), None)
    if row is None or row["host"] != host_id():
        raise UserError(f"Worker {place} does not run on this machine: reload the page.")
    os.kill(row["pid"], signal.SIGTERM)


def _worker(row: sqlite3.Row, jobs: list[JobStatus]) -> WorkerState:
    is_local = row["host"] == host_id()
    size = None
    if is_local:
        try:
            size = psutil.Process(row["pid"]).memory_info().rss
        except psutil.Error:
            is_local = False
    job = next((job for job in jobs if job.worker == row["place"]), None)
    return WorkerState(row["place"], row["pid"], row["devices"] or "all", is_local, size, job)


def _memory() -> list[MemoryUsage]:
    host = psutil.virtual_memory()
    gpus = [
        MemoryUsage(f"GPU {number}: {name}", total - free, total) for number, (name, total, free) in enumerate(cards())
    ]
    return [MemoryUsage("host", host.total - host.available, host.total), *gpus]


def _count(jobs: list[JobStatus], owner: str, state: str) -> int:
    return sum(job.owner == owner and job.state == state for job in jobs)
