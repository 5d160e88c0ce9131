"""Progress of a sweep, read from its folder: measured shards, shards given up, and workers. Torch-free.

Every worker has a file that it touches while it lives and that says why it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError
from kvlab.sweep import shards
from kvlab.sweep.leases import LEASE_SECONDS, Holder, disk_time
from kvlab.sweep.plan import Shard

WORKERS = "workers"
DONE = "done"
STOPPED = "stopped"
Say = Callable[[str], None]
LINE_SECONDS = 10.0


class WorkerFile:
    """This worker's file, which other processes read with `read_workers`."""

    def __init__(self, folder: Path, holder: Holder, seconds: float) -> None:
        self.holder, self.seconds = holder, seconds
        self.path = folder / shards.CONTROL / WORKERS / f"{holder.worker}.json"
        self.end("")

    def beat(self) -> None:
        """Record that the worker is alive."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def end(self, reason: str = DONE) -> None:
        """Record that the worker ended, and why if it did not finish; an empty reason: it is running."""
        record = {"holder": asdict(self.holder), "seconds": self.seconds, "ended": reason}
        replace_text(self.path, json.dumps(record))


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as its file describes it. `ended`: DONE, STOPPED or an error message; empty while it runs or if lost."""

    name: str
    pid: int
    ended: str
    lost: bool


def read_workers(folder: Path) -> list[WorkerStatus]:
    """All workers that took part, sorted by name; unreadable files are skipped."""
    workers, now = [], None
    for path in sorted((folder / shards.CONTROL / WORKERS).glob("[!.]*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            holder, ended = Holder(**record["holder"]), str(record["ended"])
            if not ended and now is None:
                now = disk_time(path.parent)
            silent = 0.0 if now is None else now - path.stat().st_mtime
            lost = not ended and (holder.is_dead or silent > float(record.get("seconds", LEASE_SECONDS)))
            workers.append(WorkerStatus(holder.worker, holder.pid, ended, lost))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return workers


@dataclass(frozen=True)
class SweepStatus:
    """Numbers of planned and measured shards, and the workers.

    `failed` says which methods raised on measured shards, whose other rows are there, and `given_up` why shards are not
    measured: sentences by shard name.
    """

    planned: int
    measured: int
    failed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    given_up: dict[str, tuple[str, ...]] = field(default_factory=dict)
    workers: Sequence[WorkerStatus] = ()

    @property
    def left(self) -> int:
        """Number of shards still to be measured."""
        return self.planned - self.measured - len(self.given_up)

    @property
    def lost(self) -> int:
        """Number of workers that died without recording an end."""
        return sum(worker.lost for worker in self.workers)

    @property
    def running(self) -> int:
        """Number of live workers."""
        return sum(not worker.ended and not worker.lost for worker in self.workers)

    @property
    def errors(self) -> list[str]:
        """Messages of workers that ended early."""
        normal = ("", DONE, STOPPED)
        return list(dict.fromkeys(worker.ended for worker in self.workers if worker.ended not in normal))

    @property
    def notes(self) -> list[str]:
        """A sentence for each method that failed on shards of one task and length, and for each shard given up."""
        failed = [f"Failed: {reason}" for reasons in self.failed.values() for reason in reasons]
        given_up = [f"Given up: {reason}" for reasons in self.given_up.values() for reason in reasons]
        return list(dict.fromkeys([*failed, *given_up]))

    @property
    def summary(self) -> str:
        """One line, such as `12 of 40 shards, 3 workers seen, 1 lost`."""
        workers = f"{len(self.workers)} worker{'' if len(self.workers) == 1 else 's'} seen"
        line = f"{self.measured} of {self.planned} shards, {workers}, {self.lost} lost"
        line += f", {len(self.failed)} without a method that failed" if self.failed else ""
        return f"{line}, {len(self.given_up)} given up" if self.given_up else line


def is_sweep(folder: Path) -> bool:
    """Whether a results folder belongs to a sweep."""
    return (folder / shards.PLAN).is_file()


def read_status(folder: Path) -> SweepStatus:
    """Current status of a folder's sweep; raises UserError if there is none or its plan cannot be read."""
    path = folder / shards.PLAN
    planned = _planned(folder, path.stat().st_mtime_ns if path.is_file() else 0)
    found = shards.settled_shards(folder, planned)
    return SweepStatus(len(planned), len(found.measured), found.failed, found.given_up, read_workers(folder))


@lru_cache(maxsize=16)
def _planned(folder: Path, modified_ns: int) -> tuple[Shard, ...]:
    """All planned shards; cached, as a plan may hold thousands."""
    return shards.read_plan(folder).shards


class Follower:
    """Report a sweep's progress through `say`: one line per change, at most one every LINE_SECONDS."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder, self.say = folder, say
        self._last_line, self._last_time = "", 0.0

    def look(self) -> SweepStatus:
        """Read the current status, and report it if a line is due."""
        status = read_status(self.folder)
        due = time.monotonic() - self._last_time >= LINE_SECONDS or not status.left
        if status.summary != self._last_line and due:
            self.say(status.summary)
            self._last_line, self._last_time = status.summary, time.monotonic()
        return status

    def check_finished(self, hint: str) -> None:
        """Raise UserError if shards are left, with a worker's error or else `hint`."""
        status = self.look()
        if status.left:
            reason = status.errors[-1] if status.errors else hint
            raise UserError(f"{status.left} of {status.planned} shards are left. {reason}")
