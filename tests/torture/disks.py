"""A full disk at every write, a folder nobody may write to, and a clock that was set back."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.synthetic.runs import write_synthetic_run
from tests.torture.commands import WORDS, typed
from tests.torture.judge import Case, judge
from tests.torture.kills import complete
from tests.torture.table import Row

LEAST_KIB, MOST_KIB = 8, 4096
PAGE_KIB = 4


@contextmanager
def small_disk(at: Path, kib: int) -> Iterator[Path]:
    """A file system of so many KiB at this folder; raises subprocess.CalledProcessError where none may be mounted."""
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(at)], check=True, capture_output=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False, capture_output=True)


def may_mount(work: Path) -> bool:
    """Whether this machine lets a small file system be made."""
    try:
        with small_disk(work / "try", 64):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def disks(work: Path, model: Path, count: int) -> list[Row]:
    """Rows of `count` disks of growing size, a folder that is read-only, and a clock set back."""
    if not may_mount(work):
        nothing = "left out: this user may not mount a small file system"
        return [Row("full disk", note=nothing), Row("read-only folder", note=nothing), set_back(work / "clock")]
    return [full(work / "full", model, count), read_only(work / "fixed", model), set_back(work / "clock")]


def full(at: Path, model: Path, count: int) -> Row:
    """The same comparison on disks that end at another write each time."""
    row = Row("full disk")
    asked = ["--model", str(model), "--prompt", WORDS * 4, "--methods", "h2o,keepkv", "--new-tokens", "8"]
    needed = _needed(at, asked)
    for number in range(count):
        kib = LEAST_KIB + PAGE_KIB * round((needed - LEAST_KIB) * number / (PAGE_KIB * max(1, count - 1)))
        with small_disk(at, kib):
            verdict = judge(Case("disk", f"{kib} KiB", lambda: typed("compare", *asked, "--out", str(at))))
            row.attempts += 1
            row.seconds.append(verdict.seconds)
            row.exceptions += bool(verdict.fault)
            row.faults += [f"{kib} KiB: {verdict.fault}: {verdict.said}"] if verdict.fault else []
            try:
                broken = [name for name, why in complete(at).items() if why]
            except ValueError as error:  # the list itself is a sentence where no index fits
                broken = [] if "\n" not in str(error) else [str(error)]
            row.lost += len(broken)
            row.faults += broken
    row.note = f"disks of {LEAST_KIB} to {needed} KiB, where the comparison fits"
    return row


def _needed(at: Path, asked: list[str]) -> int:
    with small_disk(at, MOST_KIB):
        judge(Case("", "", lambda: typed("compare", *asked, "--out", str(at))))
        return shutil.disk_usage(at).used // 1024 + PAGE_KIB


def read_only(at: Path, model: Path) -> Row:
    """Everything that reads or writes, on a folder of runs that became read-only."""
    row = Row("read-only folder")
    with small_disk(at, MOST_KIB):
        run = write_synthetic_run(at, method="keepkv", prompt_tokens=16, steps=2, layers=1, heads=1).name
        before = sorted(path.name for path in at.iterdir())
        subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True, capture_output=True)
        asked = ["--model", str(model), "--prompt", WORDS, "--methods", "h2o", "--new-tokens", "2", "--out", str(at)]
        for line in (
            ["compare", *asked], ["runs", "ls", "--runs", str(at)], ["doctor", str(at)],
            ["runs", "tag", run, "a", "--runs", str(at)],
            ["runs", "export", run, "--runs", str(at), "--to", f"{at}/x.zip"],
        ):  # fmt: skip
            verdict = judge(Case("disk", " ".join(line)[:60], lambda line=line: typed(*line)))
            row.attempts += 1
            row.seconds.append(verdict.seconds)
            row.exceptions += bool(verdict.fault)
            row.faults += [f"{line[:2]}: {verdict.fault}: {verdict.said}"] if verdict.fault else []
        row.lost += before != sorted(path.name for path in at.iterdir())
    return row


def set_back(at: Path) -> Row:
    """Runs from tomorrow among today's: all are listed, newest first, and none is taken for one that still runs."""
    from kvlab.trace.catalogue import list_runs, rebuild
    from kvlab.trace.record import read_record, write_record

    row = Row("clock set back a day")
    for number in range(4):
        path = write_synthetic_run(
            at, comparison_id=f"c{number}", prompt_tokens=8, steps=1, layers=1, heads=1, level="light"
        )
        record = read_record(path)
        ahead = (datetime.now(UTC) + timedelta(days=number % 2)).isoformat()
        change: dict[str, Any] = {"created": ahead}
        if number >= 2:  # one that its worker did not end
            change |= {"status": "running", "worker_pid": 2**22, "checksums": None}
        write_record(path, record.model_copy(update=change))
        row.attempts += 1
    begun = time.monotonic()
    rebuild(at)
    found = list_runs(at)
    row.seconds.append(time.monotonic() - begun)
    row.lost += 4 - len(found)
    row.exceptions += sum(entry.status == "running" for entry in found)
    return row
