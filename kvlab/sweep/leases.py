"""Leases on shards, one file each: created by `os.link`, renewed by `os.utime`, replaced by `os.replace` once stale.

All three are atomic on network file systems as well. Ages are read against a file touched on the same disk, as the
clocks of machines differ. Two workers on one shard would only waste time: they write the same file. Torch-free.
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

from kvlab.common.liveness import host_id, is_alive
from kvlab.core.errors import UserError

LEASE_SECONDS = 60.0


@dataclass(frozen=True)
class Holder:
    """A worker's process."""

    worker: str
    place: str  # the machine and container in which the process id is valid
    pid: int
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """This process under a new worker name."""
        name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
        return cls(name, host_id(), os.getpid(), datetime.now(UTC).isoformat())

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended; always False for another machine's."""
        return self.place == host_id() and not is_alive(self.pid, self.since)


def disk_time(folder: Path) -> float:
    """The time according to the disk that holds `folder`; this machine's time if nothing can be written there."""
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
    """This process's lease on a shard. `tries` counts it and the leases that were lost before it."""

    path: Path
    content: str
    tries: int

    def renew(self) -> None:
        """Restart the lease's age."""
        with contextlib.suppress(OSError):  # taken over while this process was suspended: the shard is measured twice
            os.utime(self.path)

    def release(self) -> None:
        """Let other workers take the shard."""
        with contextlib.suppress(OSError):
            if self.path.read_text(encoding="utf-8") == self.content:
                self.path.unlink()


class Leases:
    """Claims leases in one folder for one holder; a lease not renewed for `seconds` is stale."""

    def __init__(self, folder: Path, holder: Holder, seconds: float = LEASE_SECONDS) -> None:
        self.folder, self.holder, self.seconds = folder, holder, seconds
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, name: str) -> Lease | None:
        """Take a shard; None while another live worker has it."""
        path = self.folder / name
        lease, temporary = self._write(path, tries=1)
        try:
            os.link(temporary, path)
            return lease
        except FileExistsError:
            return self._take_over(path)
        except OSError as error:
            raise UserError(
                f"{self.folder} is on a disk without hard links ({error.strerror}), which workers need to share "
                "shards: choose a folder on another disk."
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _write(self, path: Path, tries: int) -> tuple[Lease, Path]:
        """A new lease, and the temporary file that holds it until it is moved into place."""
        content = json.dumps(asdict(self.holder) | {"tries": tries, "token": secrets.token_hex(8)})
        temporary = path.with_name(f".{path.name}.{self.holder.worker}")
        temporary.write_text(content, encoding="utf-8")
        return Lease(path, content, tries), temporary

    def _take_over(self, path: Path) -> Lease | None:
        """Replace a stale lease; None if it is not stale, or if another worker was faster."""
        try:
            content = path.read_text(encoding="utf-8")
            now = disk_time(self.folder)
            holder, tries = _read(content)
            if now - path.stat().st_mtime <= self.seconds and not (holder is not None and holder.is_dead):
                return None
            with self._exclusively(path, content, now) as exclusive:
                # Another worker may have taken it over between the read and the mark.
                if not exclusive or path.read_text(encoding="utf-8") != content:
                    return None
                lease, temporary = self._write(path, tries + 1)
                os.replace(temporary, path)
                return lease
        except FileNotFoundError:  # released
            return None

    @contextlib.contextmanager
    def _exclusively(self, path: Path, content: str, now: float) -> Iterator[bool]:
        """Yield whether this is the only worker that is taking over the lease with this content.

        Marked by a second file, so that the lease itself never leaves its place.
        """
        mark = path.with_name(f".{path.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}.taken")
        try:
            mark.open("x").close()
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if now - mark.stat().st_mtime > self.seconds:  # its worker was killed during the takeover
                    mark.unlink()
            yield False
            return
        try:
            yield True
        finally:
            mark.unlink(missing_ok=True)


def _read(content: str) -> tuple[Holder | None, int]:
    """The holder and the number of tries; (None, 1) if a crash truncated the file."""
    try:
        record = json.loads(content)
        return Holder(*(record[name] for name in ("worker", "place", "pid", "since"))), int(record["tries"])
    except (ValueError, KeyError, TypeError):
        return None, 1
