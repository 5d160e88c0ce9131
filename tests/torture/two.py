"""Two dashboards and two workers on one folder, one of them stopped in the middle: every job runs once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvlab.requests import CompareRequest, MethodChoice
from tests.torture.table import Row

ROOT = Path(__file__).resolve().parents[2]
PORTS = (8791, 8792)
PATIENCE_SECONDS = 120.0
CHOICES = tuple(MethodChoice(method=name) for name in ("h2o", "keepkv"))


@contextmanager
def served(root: Path, more: dict[str, str] | None = None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two workers that came by themselves and run a stand-in, then a dashboard on each of the ports."""
    root.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "jobs")])
    worker = [sys.executable, "-m", "kvlab.jobs.worker", "--runs", str(root), "--compare", "stand_in:compare"]
    server = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--headless", "--port"]

    def start(line: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": paths} | (more or {})
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

    started = [start(worker) for _ in range(2)]
    time.sleep(3)  # the servers find a worker, and start none that would load a model
    started += [start([*server, str(port)]) for port in PORTS]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGINT if process in started[2:] else signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def note_ends(row: Row, root: Path, asked: Sequence[str], patience: float = PATIENCE_SECONDS) -> None:
    """Waits for the jobs; counts those that did not end as complete, and those whose runs were not made once each."""
    from kvlab import jobs
    from kvlab.trace.catalogue import list_runs

    until = time.monotonic() + patience
    while any(jobs.status(root, job).state in ("queued", "running") for job in asked) and time.monotonic() < until:
        time.sleep(0.2)
    states = Counter(jobs.status(root, job).state for job in asked)
    made = Counter(entry.comparison_id for entry in list_runs(root))
    row.lost += len(asked) - states["complete"]
    row.exceptions += sum(made[job] != len(CHOICES) for job in asked)
    row.faults += [f"states {dict(states)}"] if row.lost else []


def two(root: Path, count: int) -> Row:
    """`count` jobs in one queue, for two workers that came by themselves and those of two dashboards."""
    from kvlab import jobs

    row = Row("two servers, two workers", attempts=count)
    with served(root) as started:
        asked = [jobs.submit(root, CompareRequest(prompt=f"fine {n}", choices=CHOICES)) for n in range(count)]
        time.sleep(6)
        started[2].send_signal(signal.SIGINT)  # one of the dashboards goes
        note_ends(row, root, asked)
    row.note = "each job ran once; one of the servers was stopped meanwhile"
    return row
