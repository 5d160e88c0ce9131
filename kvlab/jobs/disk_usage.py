"""Disk usage of a runs folder in bytes, in total and per owner. A run that has ended is measured once."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from kvlab.bench.request import BenchJob
from kvlab.common.liveness import PULSE
from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.fitting.request import FitJob
from kvlab.jobs.work import read_request
from kvlab.library.prefixes import list_prefixes
from kvlab.server.quotas import DiskUsage, disk_rules, disk_usage_of
from kvlab.server.users import ALONE, acting_as
from kvlab.trace.catalogue import list_runs

RESULTS = {EvalJob: "eval/{}", BenchJob: "bench/{}.parquet", FitJob: "fit/{}"}
SECONDS_KNOWN = 15.0
KEPT = 20_000
_known: dict[str, tuple[float, int]] = {}
_lock = threading.Lock()


def folder_usage(root: Path, measured: bool = False) -> DiskUsage:
    """Disk usage of the folder and its limit.

    Used bytes are 0 unless a limit is set or `measured` is true, and are measured again after some seconds.
    """
    if not measured and disk_rules().limit is None:
        return disk_usage_of(root, 0)
    key, now = str(root), time.monotonic()
    with _lock:
        measured_at, used = _known.get(key, (-SECONDS_KNOWN, 0))
        if now - measured_at >= SECONDS_KNOWN:
            used = folder_bytes(root)
            _known[key] = (now, used)
    return disk_usage_of(root, used)


def folder_bytes(root: Path) -> int:
    """Bytes of everything in the folder."""
    return sum(path_bytes(Path(entry.path)) for entry in _entries(root))


def path_bytes(path: Path) -> int:
    """Bytes of a file or folder, 0 if missing; cached for runs that have not changed."""
    try:
        stamp = (path / "run.json").stat().st_mtime_ns
    except OSError:
        return _walked(path)
    if (path / PULSE).exists():  # it is being written
        return _walked(path)
    return _of_run(str(path), stamp, path.stat().st_mtime_ns)


def bytes_by_owner(connection: sqlite3.Connection, root: Path) -> dict[str, int]:
    """Bytes per user whose jobs made them; "" for what was made without a name, as in a terminal."""
    owners = _owners(connection)
    sizes: dict[str, int] = {}
    for run in list_runs(root):
        owner = run.owner or owners.get(run.batch or run.comparison_id, "")
        sizes[owner] = sizes.get(owner, 0) + path_bytes(Path(root) / run.run_id)
    for row in connection.execute("SELECT owner, request FROM jobs WHERE owner != '' AND request LIKE '%\"kind\"%'"):
        if name := _result(row["request"]):
            sizes[row["owner"]] = sizes.get(row["owner"], 0) + path_bytes(Path(root) / name)
    with acting_as(ALONE):  # what a person has counts, whoever asks
        for file in list_prefixes(root)[0]:
            sizes[file.header.owner] = sizes.get(file.header.owner, 0) + file.bytes
    return sizes


def _owners(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT job_id, owner FROM jobs WHERE owner != ''")
    return {row["job_id"]: row["owner"] for row in rows}


@lru_cache(maxsize=4096)
def _result(request: str) -> str:
    """The path of a job's named results, relative to the runs folder; empty for comparisons."""
    try:
        work = read_request(request)
    except (ValidationError, UserError):
        return ""
    place = RESULTS.get(type(work))
    return place.format(getattr(work, "name", "")) if place else ""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


@lru_cache(maxsize=KEPT)
def _of_run(path: str, _stamp: int, _changed: int) -> int:
    # The stamps are part of the key only: a run's record is the last of its files to change.
    return _walked(Path(path))


def _walked(path: Path) -> int:
    if not path.is_dir():
        try:
            return path.lstat().st_size
        except OSError:
            return 0
    total = 0
    for entry in _entries(path):
        if entry.is_dir(follow_symlinks=False):
            total += _walked(Path(entry.path))
        else:
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
    return total
