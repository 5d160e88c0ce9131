"""kill -9 of everything that writes, at any moment: what was saved stays, and the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from kvlab.core.choice import MethodChoice
from kvlab.requests.compare import CompareRequest
from tests.torture.commands import WORDS, typed
from tests.torture.judge import Case, judge
from tests.torture.table import Row
from tests.torture.two import free_ports

PATIENCE_SECONDS = 60.0
METHODS = ("h2o", "keepkv")


def kills(work: Path, model: Path, count: int) -> list[Row]:
    """Rows of `count` kills: of a comparison, a worker and an evaluation a third each, and a few of the server."""
    servers = max(1, count // 10)
    each = max(1, (count - servers) // 3)
    return [
        of_compare(work / "compare", model, each),
        of_worker(work / "worker", model, each),
        of_eval(work / "eval", model, each),
        of_server(work / "server", servers),
    ]


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Do it in a fork that is killed after so long; returns whether it was still at work."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    alive = os.waitpid(child, os.WNOHANG)[0] == 0
    if alive:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:  # so young that it has no group of its own yet
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return alive


def complete(root: Path) -> dict[str, str]:
    """The runs that say they are complete, by id, each with why it cannot be opened or nothing."""
    from kvlab.core.errors import UserError
    from kvlab.trace import open_run
    from kvlab.trace.catalogue import list_runs

    found = {}
    for entry in list_runs(root):
        if entry.status == "complete":
            try:
                open_run(root / entry.run_id, strict=True)
                found[entry.run_id] = ""
            except UserError as error:
                found[entry.run_id] = str(error)
    return found


def _note_lost(row: Row, root: Path, before: dict[str, str]) -> dict[str, str]:
    """Counts complete runs that are gone or no longer whole, and anything that says it runs and does not."""
    from kvlab.trace.catalogue import list_runs

    after = complete(root)
    gone = [name for name in before if name not in after] + [name for name, why in after.items() if why]
    row.lost += len(gone)
    row.faults += [f"{name}: {after.get(name, 'gone')}" for name in gone]
    stuck = [entry.run_id for entry in list_runs(root) if entry.status == "running"]
    row.exceptions += len(stuck)
    row.faults += [f"{name} says that it runs" for name in stuck]
    return after


def of_compare(root: Path, model: Path, count: int) -> Row:
    """A comparison on the command line."""
    row, chance, known = Row("kill -9 of compare"), random.Random(0), dict[str, str]()
    asked = ["--model", str(model), "--prompt", WORDS * 4, "--methods", ",".join(METHODS), "--new-tokens", "12"]
    whole = judge(Case("", "", lambda: typed("compare", *asked, "--out", str(root)))).seconds
    for _ in range(count):
        begun = time.monotonic()
        row.attempts += 1
        killed_after(chance.uniform(0.05, whole), lambda: typed("compare", *asked, "--out", str(root)))
        known = _note_lost(row, root, known)
        row.seconds.append(time.monotonic() - begun)
    row.note = f"{len(known)} runs were complete, all open"
    return row


def of_worker(root: Path, model: Path, count: int) -> Row:
    """A worker with jobs in its queue; after each kill another one takes its place."""
    import threading

    from kvlab import jobs
    from kvlab.jobs import worker

    row, chance, known = Row("kill -9 of a worker"), random.Random(1), dict[str, str]()
    root.mkdir(parents=True, exist_ok=True)
    choices = tuple(MethodChoice(method=name) for name in METHODS)
    request = CompareRequest(prompt=WORDS * 4, model=str(model), choices=choices, max_new_tokens=8)

    def serve() -> None:
        worker.serve(root, "kvlab.engine:compare", threading.Event())

    asked = [jobs.submit(root, request) for _ in range(max(2, count // 2))]
    for _ in range(count):
        begun = time.monotonic()
        row.attempts += 1
        killed_after(chance.uniform(0.1, 2.5), serve)
        known = _note_lost(row, root, known)
        row.seconds.append(time.monotonic() - begun)
    last = jobs.submit(root, request)
    until = time.monotonic() + PATIENCE_SECONDS + 5 * len(asked)
    while jobs.status(root, last).state in ("queued", "running") and time.monotonic() < until:
        killed_after(10.0, serve)
    states = [jobs.status(root, job).state for job in (*asked, last)]
    open_still = sum(state in ("queued", "running") for state in states)
    row.lost += open_still
    ended = {state: states.count(state) for state in ("complete", "failed")}
    row.note = f"{ended['complete']} of {len(states)} jobs complete, {ended['failed']} say that they were killed"
    return row


def of_eval(root: Path, model: Path, count: int) -> Row:
    """An evaluation that goes on with what is there, until it is whole."""
    from kvlab.evaluation.results.rows import read_results

    row, chance = Row("kill -9 of eval, resumed"), random.Random(2)
    fixed = ["--model", str(model), "--tasks", "needle", "--methods", "h2o", "--budgets", "0.2", "--lengths", "200"]
    samples = 2 * count
    asked = [*fixed, "--samples", str(samples), "--out", str(root)]
    known = 0
    for _ in range(count):
        begun = time.monotonic()
        row.attempts += 1
        killed_after(chance.uniform(0.3, 3.0), lambda: typed("eval", *asked))
        there = _rows(root)
        row.lost += max(0, known - there)
        known = there
        row.seconds.append(time.monotonic() - begun)
    last = judge(Case("", "", lambda: typed("eval", *asked)), limit=300)
    rows = read_results(root)
    doubled = int(rows.duplicated(["method", "sample"]).sum()) if "sample" in rows else 0
    row.exceptions += bool(last.code) + doubled
    row.faults += [f"the last one: exit {last.code}, {last.fault} {last.said}"] if last.code else []
    row.note = f"{len(rows)} rows of {2 * samples}, {doubled} twice"
    row.lost += max(0, 2 * samples - len(rows))
    return row


def _rows(root: Path) -> int:
    from kvlab.core.errors import UserError
    from kvlab.evaluation.results.rows import read_results

    try:
        return len(read_results(root))
    except UserError:  # none yet
        return 0


def of_server(root: Path, count: int) -> Row:
    """`kvlab app` itself: neither its server nor its worker stays, and its port is free."""
    row = Row("kill -9 of the server")
    root.mkdir(parents=True, exist_ok=True)
    for _ in range(count):
        begun = time.monotonic()
        row.attempts += 1
        (port,) = free_ports(1)
        line = [sys.executable, "-m", "kvlab", "app", "--runs", str(root), "--port", str(port), "--headless"]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children: list[psutil.Process] = []
        while len(children) < 2 and time.monotonic() < begun + PATIENCE_SECONDS:
            children = psutil.Process(process.pid).children()
            time.sleep(0.1)
        time.sleep(random.Random(len(row.seconds)).uniform(0, 2))
        process.kill()
        process.wait()
        gone, left = psutil.wait_procs(children, timeout=PATIENCE_SECONDS / 2)
        row.exceptions += len(left) + (not gone)
        row.faults += [f"{child.name()} stays" for child in left]
        for child in left:
            child.kill()
        row.seconds.append(time.monotonic() - begun)
    return row
