"""Who has which shard: a file each, made by `os.link`, renewed by `os.utime`, replaced by `os.replace` once stale.

All three happen in one step on a shared disk as well. Ages are read against a file touched on the same disk, as clocks
of machines differ. Two workers on one shard would waste work and nothing else: they write the same file. Torch-free.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.common.liveness import host_id, is_alive

LEASE_SECONDS = 60.0


@dataclass(frozen=True)
class Holder:
    """A process that takes part in a sweep."""

    worker: str
    place: str  # where its process id means something
    pid: int
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """A new name for this process."""
        name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
        return cls(name, host_id(), os.getpid(), datetime.now(UTC).isoformat())

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to be gone; of another machine that cannot be told."""
        return self.place == host_id() and not is_alive(self.pid, self.since)


def disk_time(folder: Path) -> float:
    """The time by the disk that holds `folder`; this machine's own where nothing can be written there."""
    clock = folder / f".clock.{platform.node()}.{os.getpid()}"
    try:
        clock.touch()
        now = clock.stat().st_mtime
        clock.unlink(missing_ok=True)
        return now
    except OSError:
        return time.time()


@dataclass(frozen=True)
class Lease:
    """A shard that is this process's; `tries` counts it and those that were lost while they had it."""

    path: Path
    content: str
    tries: int

    def renew(self) -> None:
        """Say that the holder lives."""
        with contextlib.suppress(OSError):  # taken over while this process was stopped: the shard is measured twice
            os.utime(self.path)

    def give_back(self) -> None:
        """Let others have the shard."""
        with contextlib.suppress(OSError):
            if self.path.read_text(encoding="utf-8") == self.content:
                self.path.unlink()


class Leases:
    """The leases of one folder as one holder sees them; one that was not renewed for `seconds` is stale."""

    def __init__(self, folder: Path, holder: Holder, seconds: float = LEASE_SECONDS) -> None:
        self.folder, self.holder, self.seconds = folder, holder, seconds
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, name: str) -> Lease | None:
        """Take a shard; None while another worker that lives has it."""
        path = self.folder / name
        lease, mine = self._written(path, tries=1)
        try:
            os.link(mine, path)
            return lease
        except FileExistsError:
            return self._take_over(path)
        except OSError as error:
            raise UserError(
                f"{self.folder} lies on a disk without hard links ({error.strerror}), which workers need to share "
                "shards: choose a folder on another disk."
            ) from error
        finally:
            mine.unlink(missing_ok=True)

    def _written(self, path: Path, tries: int) -> tuple[Lease, Path]:
        """A lease of one's own, and the file it is written to until it is put in its place."""
        content = json.dumps(asdict(self.holder) | {"tries": tries, "token": secrets.token_hex(8)})
        mine = path.with_name(f".{path.name}.{self.holder.worker}")
        mine.write_text(content, encoding="utf-8")
        return Lease(path, content, tries), mine

    def _take_over(self, path: Path) -> Lease | None:
        """Put one's own lease in the place of a stale one; None where it is not stale, or another worker was faster."""
        try:
            content = path.read_text(encoding="utf-8")
            now = disk_time(self.folder)
            holder, tries = _read(content)
            if now - path.stat().st_mtime <= self.seconds and not (holder is not None and holder.is_dead):
                return None
            with self._alone(path, content, now) as alone:
                # Whoever was alone before may have put a lease there since it was read.
                if not alone or path.read_text(encoding="utf-8") != content:
                    return None
                lease, mine = self._written(path, tries + 1)
                os.replace(mine, path)
                return lease
        except FileNotFoundError:  # given back
            return None

    @contextlib.contextmanager
    def _alone(self, path: Path, content: str, now: float) -> Iterator[bool]:
        """Whether no other worker is about to take over the lease of this content; it is never out of its place."""
        mark = path.with_name(f".{path.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}.taken")
        try:
            mark.open("x").close()
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if now - mark.stat().st_mtime > self.seconds:  # of one that was killed on the way
                    mark.unlink()
            yield False
            return
        try:
            yield True
        finally:
            mark.unlink(missing_ok=True)


def _read(content: str) -> tuple[Holder | None, int]:
    """The holder and how many had the shard; nobody in particular where the file was cut short by a crash."""
    try:
        told = json.loads(content)
        return Holder(*(told[name] for name in ("worker", "place", "pid", "since"))), int(told["tries"])
    except (ValueError, KeyError, TypeError):
        return None, 1
