"""Two dashboards and two workers on one folder, one of them stopped in the middle: every job runs once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from kvlab.requests import CompareRequest, MethodChoice
from tests.torture.table import Row

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0


def two(root: Path, count: int) -> Row:
    """`count` jobs in one queue, for two workers that came by themselves and those of two dashboards."""
    from kvlab import jobs
    from kvlab.trace.catalogue import list_runs

    row = Row("two servers, two workers")
    root.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "jobs")])}
    worker = [sys.executable, "-m", "kvlab.jobs.worker", "--runs", str(root), "--compare", "stand_in:compare"]
    server = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--headless", "--port"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    started = [subprocess.Popen(worker, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    time.sleep(3)  # the servers find a worker, and start none that would load a model
    started += [subprocess.Popen([*server, str(port)], **quiet) for port in (8791, 8792)]  # type: ignore[call-overload]
    try:
        choices = tuple(MethodChoice(method=name) for name in ("h2o", "keepkv"))
        asked = [jobs.submit(root, CompareRequest(prompt=f"fine {n}", choices=choices)) for n in range(count)]
        time.sleep(6)
        started[2].send_signal(signal.SIGINT)  # one of the dashboards goes
        begun = time.monotonic()
        while any(jobs.status(root, job).state in ("queued", "running") for job in asked):
            if time.monotonic() > begun + PATIENCE_SECONDS:
                break
            time.sleep(0.2)
        states = Counter(jobs.status(root, job).state for job in asked)
        runs = Counter(entry.comparison_id for entry in list_runs(root))
    finally:
        for process in started:
            process.send_signal(signal.SIGINT if process in started[2:] else signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    row.attempts = count
    row.lost = count - states["complete"]
    row.exceptions = sum(made != len(choices) for made in runs.values())
    row.faults = [f"states {dict(states)}"] if row.lost else []
    row.note = "each job ran once; one of the servers was stopped meanwhile"
    return row
