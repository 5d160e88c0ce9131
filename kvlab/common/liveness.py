"""Whether a process is alive: by its id on this host, else by a file that it touches."""

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import psutil

PULSE = ".pulse"  # in the folder of a run that is being written
BEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0


@cache
def host_id() -> str:
    """Identifies this machine since its boot, and the container if it has its own process ids."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def is_alive(pid: int | None, since: str) -> bool:
    """Whether process `pid` runs and is the one that ran at `since` (ISO 8601), as process ids are reused."""
    if pid is None:
        return False
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        return process.status() != psutil.STATUS_ZOMBIE and started <= datetime.fromisoformat(since).timestamp() + 2
    except (psutil.Error, ValueError, OverflowError):
        return False


def beat(folder: Path) -> Callable[[], None]:
    """Touch a file in `folder` every few seconds, for other hosts; returns the function that stops it."""
    file = folder / PULSE
    ended = threading.Event()
    try:
        file.write_text(host_id(), encoding="utf-8")
    except OSError:
        return ended.set  # the run itself will say that the disk is full

    def beating() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                os.utime(file)
            except OSError:
                return  # the folder is gone

    def end() -> None:
        ended.set()
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)

    threading.Thread(target=beating, name="kvlab-pulse", daemon=True).start()
    return end


def is_being_written(folder: Path, pid: int | None, since: str) -> bool:
    """Whether the process that writes the run in `folder` is alive; on another host judged by its pulse file."""
    file = folder / PULSE
    try:
        place = file.read_text(encoding="utf-8")
        beaten = file.stat().st_mtime
    except (OSError, ValueError):
        return is_alive(pid, since)
    if place == host_id():
        return is_alive(pid, since)
    return time.time() - beaten < SILENT_SECONDS
