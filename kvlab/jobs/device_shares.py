"""Divide a server's GPUs among its workers; on a CPU one worker has everything."""

import os
import platform
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise

from kvlab.common.liveness import host_id, is_alive
from kvlab.core.errors import UserError
from kvlab.jobs.queue_db import finish
from kvlab.jobs.work import Work
from kvlab.planning.plan import visible_gpus

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
    if any(row["place"] == place and row["pid"] != pid for row in live_workers(connection)):
        return False
    connection.execute(
        "INSERT OR REPLACE INTO workers (place, pid, host, since, heartbeat, devices) VALUES (?, ?, ?, ?, ?, ?)",
        (place, pid, host_id(), datetime.now(UTC).isoformat(), time.time(), devices),
    )
    return True


def live_workers(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """Rows of the workers that are alive, by slot."""
    return [row for row in connection.execute("SELECT * FROM workers ORDER BY place").fetchall() if _is_alive(row)]


def _is_alive(row: sqlite3.Row) -> bool:
    # Process ids of another machine or container are meaningless here, so the heartbeat decides. Queues of version 1
    # store the machine alone.
    if row["host"] in (host_id(), platform.node()):
        return is_alive(row["pid"], row["since"])
    return time.time() - row["heartbeat"] < SILENT_SECONDS


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


WORKERS = "KVLAB_WORKERS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_WORKERS = 64


@dataclass(frozen=True)
class Share:
    """GPUs of one worker: `devices` as requests and the queue name them (`cuda:0,cuda:1`), `ids` as the driver does.

    Both are empty for everything. `others` are the GPUs of the other workers.
    """

    place: int
    devices: str = ""
    ids: tuple[str, ...] = ()
    others: str = ""


def shares(workers: int, gpus: list[str]) -> list[Share]:
    """Divide the GPUs among the workers, in order and as evenly as possible.

    Raises UserError if there are more workers than GPUs, which would load two models onto one.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"There cannot be {workers} workers: ask for 1 to {MOST_WORKERS}.")
    if workers == 1 or not gpus:
        return [Share(place) for place in range(1, workers + 1)]
    if workers > len(gpus):
        raise UserError(f"{workers} workers want a GPU each, and {len(gpus)} can be seen: ask for fewer --workers.")
    bounds = [round(len(gpus) * place / workers) for place in range(workers + 1)]
    names = [f"cuda:{number}" for number in range(len(gpus))]
    return [
        Share(place, ",".join(names[low:high]), tuple(gpus[low:high]), ",".join([*names[:low], *names[high:]]))
        for place, (low, high) in enumerate(pairwise(bounds), start=1)
    ]


def server_shares() -> list[Share]:
    """The shares of this process's server, whose number of workers is `KVLAB_WORKERS` (default 1)."""
    named = os.environ.get(WORKERS, "1")
    if not named.isdecimal() or len(named) > 4:
        raise UserError(f"{WORKERS} is {named[:40]!r}: give a number of workers.")
    return _shares(int(named), os.environ.get(VISIBLE))


@lru_cache(maxsize=2)
def _shares(workers: int, _visible: str | None) -> list[Share]:
    # Asking the driver is slow, and pages call this every second.
    return shares(workers, visible_gpus() if workers > 1 else [])


def device_of(work: Work) -> str:
    """The GPU that the job names, such as `cuda:2`; empty if any worker may take it."""
    device = str(getattr(getattr(work, "request", work), "device", ""))
    return device if device.startswith("cuda:") else ""


def with_local_device(work: Work, devices: str) -> Work:
    """The job with its GPU numbered as the worker sees it: CUDA counts visible devices from 0."""
    device = device_of(work)
    if not device or not devices:
        return work
    own_devices = devices.split(",")
    if device not in own_devices:
        raise UserError(f"There is no {device} on this server: choose auto, or another device.")
    renamed = {"device": f"cuda:{own_devices.index(device)}"}
    inner = getattr(work, "request", None)
    changed = renamed if inner is None else {"request": inner.model_copy(update=renamed)}
    return work.model_copy(update=changed)
