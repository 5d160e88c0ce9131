"""The workers of a sweep: a file each, touched while it lives, with a sentence once it ended. Torch-free."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.sweep.leases import LEASE_SECONDS, Holder, disk_time
from kvlab.sweep.shards import CONTROL

WORKERS = "workers"
DONE = "done"
STOPPED = "stopped"


@dataclass(frozen=True)
class Seen:
    """A worker as its file tells: it ended with a word or a sentence, or lives, or was lost."""

    name: str
    pid: int
    ended: str
    lost: bool


class Entry:
    """This worker's file."""

    def __init__(self, folder: Path, holder: Holder, seconds: float) -> None:
        self.holder, self.seconds = holder, seconds
        self.path = folder / CONTROL / WORKERS / f"{holder.worker}.json"
        self._write("")

    def beat(self) -> None:
        """Say that the worker lives."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def end(self, reason: str = DONE) -> None:
        """Say that the worker ended, and why where it did not finish."""
        self._write(reason)

    def _write(self, ended: str) -> None:
        told = {"holder": asdict(self.holder), "seconds": self.seconds, "ended": ended}
        replace_text(self.path, json.dumps(told))


def seen(folder: Path) -> list[Seen]:
    """Every worker that took part, in the order of their names; a file that cannot be read is passed over."""
    found, now = [], None
    for path in sorted((folder / CONTROL / WORKERS).glob("[!.]*.json")):
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            holder, ended = Holder(**told["holder"]), str(told["ended"])
            if not ended and now is None:
                now = disk_time(path.parent)
            silent = 0.0 if now is None else now - path.stat().st_mtime
            lost = not ended and (holder.is_dead or silent > float(told.get("seconds", LEASE_SECONDS)))
            found.append(Seen(holder.worker, holder.pid, ended, lost))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
