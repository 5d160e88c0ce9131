"""Two dashboards and two workers on one folder, one of them stopped in the middle: every job runs once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvlab.core.choice import MethodChoice
from kvlab.requests.compare import CompareRequest
from tests.torture.table import Row

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
CHOICES = tuple(MethodChoice(method=name) for name in ("h2o", "keepkv"))


@dataclass(frozen=True)
class Served:
    """Two workers that came by themselves and run a stand-in, and a dashboard on each of the ports."""

    workers: list[subprocess.Popen[bytes]]
    dashboards: list[subprocess.Popen[bytes]]
    ports: tuple[int, ...]


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody has: on one of its own each, no part meets the dashboard of another that runs beside it."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


@contextmanager
def served(root: Path, more: dict[str, str] | None = None) -> Iterator[Served]:
    """Workers and dashboards of a folder, from when both dashboards answer."""
    root.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "jobs")])
    worker = [
        sys.executable,
        "-m",
        "kvlab.jobs.worker",
        "--nice",
        "0",
        "--runs",
        str(root),
        "--compare",
        "stand_in:compare",
    ]
    server = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--headless", "--port"]

    def start(line: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": paths} | (more or {})
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

    workers, ports = [start(worker) for _ in range(2)], free_ports(2)
    time.sleep(3)  # the servers find a worker, and start none that would load a model
    dashboards = [start([*server, str(port)]) for port in ports]
    try:
        for dashboard, port in zip(dashboards, ports, strict=True):
            _wait_for(dashboard, port)
        yield Served(workers, dashboards, ports)
    finally:
        for process in (*workers, *dashboards):
            process.send_signal(signal.SIGINT if process in dashboards else signal.SIGTERM)
        for process in (*workers, *dashboards):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(dashboard: subprocess.Popen[bytes], port: int) -> None:
    opener, until = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            opener.open(f"http://localhost:{port}/_stcore/health", timeout=2).close()
            return
        except OSError as error:
            if dashboard.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"a dashboard did not start (exit status {dashboard.poll()})") from error
            time.sleep(0.2)


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
    with served(root) as now:
        asked = [jobs.submit(root, CompareRequest(prompt=f"fine {n}", choices=CHOICES)) for n in range(count)]
        time.sleep(6)
        now.dashboards[0].send_signal(signal.SIGINT)  # one of the dashboards goes
        note_ends(row, root, asked)
    row.note = "each job ran once; one of the servers was stopped meanwhile"
    return row
