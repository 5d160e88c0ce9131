"""A clock that goes back an hour while two dashboards and a worker are at work on one folder.

A few lines of C, loaded before the C library, tell these processes that it is an hour later for as long as a file is
there. What the file system stamps on files stays the machine's own time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from websockets import ConnectionClosed

from app.navigation.menu import page_names
from kvlab.requests.compare import CompareRequest
from tests.torture.light import Light
from tests.torture.table import Row
from tests.torture.two import CHOICES, PATIENCE_SECONDS, ROOT, Served, note_ends, served

AHEAD = "KVLAB_AHEAD"
SOURCE = r"""
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) { const char *file = getenv("KVLAB_AHEAD"); return file && !access(file, F_OK) ? 3600 : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int failed = syscall(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += ahead();
  return failed;
}
time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""
# A job is asked for under the clock that is ahead, as by a dashboard.
ASK = (
    "import sys; from pathlib import Path; from kvlab import jobs; from kvlab.requests.compare import CompareRequest\n"
    "print(jobs.submit(Path(sys.argv[1]), CompareRequest.model_validate_json(sys.argv[2])))"
)


def set_back(root: Path, count: int) -> Row:
    """`count` jobs before and as many after the clock went back, in the middle of one; every page before and after."""
    row = Row("clock set back an hour at work")
    root.mkdir(parents=True, exist_ok=True)
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        row.note = "left out: no C compiler here"
        return row
    shim, ahead = root / "ahead.so", root / "ahead"
    shim.with_suffix(".c").write_text(SOURCE, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, shim.with_suffix(".c")], check=True, capture_output=True)
    ahead.touch()
    shifted = {"LD_PRELOAD": str(shim), AHEAD: str(ahead)}
    runs = root / "runs"
    with served(runs, shifted) as now:
        prompts = [*(f"fine {number}" for number in range(count)), "slow"]
        asked = [_asked_ahead(runs, prompt, shifted) for prompt in prompts]
        _read_all(row, runs, asked[-1], now)
        ahead.unlink()
        _read_all(row, runs, asked[-1], now)
        from kvlab import jobs

        asked += [jobs.submit(runs, _request(f"later {number}")) for number in range(count)]
        note_ends(row, runs, asked)
        _read_all(row, runs, asked[-1], now)
        row.lost += sum(jobs.status(runs, job).elapsed < 0 for job in asked)
    row.attempts += len(asked)
    row.note = f"{len(asked)} jobs, {row.attempts - len(asked)} pages of two dashboards before, just after and later"
    return row


def _request(prompt: str) -> CompareRequest:
    return CompareRequest(prompt=prompt, choices=CHOICES)


def _asked_ahead(runs: Path, prompt: str, shifted: dict[str, str]) -> str:
    line = [sys.executable, "-c", ASK, str(runs), _request(prompt).model_dump_json()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | shifted
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def _read_all(row: Row, runs: Path, until_begun: str, now: Served) -> None:
    """Every page of both dashboards, once the job has begun."""
    from kvlab import jobs
    from kvlab.trace.catalogue import list_runs

    until = time.monotonic() + PATIENCE_SECONDS
    while jobs.status(runs, until_begun).state == "queued" and time.monotonic() < until:
        time.sleep(0.2)
    names = [entry.run_id for entry in list_runs(runs)]
    run = next(name for name in names if "keepkv" in name)
    for dashboard, port in zip(now.dashboards, now.ports, strict=True):
        try:
            asyncio.run(_read(row, f"http://localhost:{port}", run))
        except (OSError, ConnectionClosed) as error:
            raise RuntimeError(f"a dashboard did not answer (exit status {dashboard.poll()}): {error}") from error


async def _read(row: Row, address: str, run: str) -> None:
    pages = page_names()
    async with Light(address) as reader:
        await reader.open("runs", run=run)
        for page in pages:
            row.attempts += 1
            row.seconds.append(await reader.open(page, run=run))
        row.exceptions += len(reader.exceptions)
        row.faults += reader.exceptions
