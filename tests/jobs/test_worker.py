"""The worker as a real process: started once, cancelled, killed, restarted, stopped with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.jobs.worker import NICE
from kvlab.planning.plan import visible_gpus
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_runs

HERE = Path(__file__).parent
PATIENCE_SECONDS = 30


def ask(prompt: str, *methods: str) -> CompareRequest:
    return CompareRequest(prompt=prompt, choices=tuple(MethodChoice(method=m) for m in methods or ("h2o",)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def state(root: Path, job: str) -> str:
    return jobs.status(root, job).state


class Workers:
    """Starts workers that run the stand-in, and ends those it started."""

    def __init__(self, root: Path) -> None:
        self.root, self.started = root, list[subprocess.Popen]()

    def start(self, *more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "kvlab.jobs.worker", "--nice", "0", "--runs", str(self.root)]
        environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([*command, "--compare", "stand_in:compare", *more], env=environment)
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path)
    yield found
    found.end()


def test_a_killed_worker_fails_its_job_keeps_the_runs_and_the_next_worker_goes_on(tmp_path: Path, workers: Workers):
    job, following = jobs.submit(tmp_path, ask("kill", "h2o", "keepkv")), jobs.submit(tmp_path, ask("fine"))
    assert workers.start().wait(PATIENCE_SECONDS) == -signal.SIGKILL
    killed = jobs.status(tmp_path, job)
    assert killed.state == "failed"
    assert killed.message.startswith("The worker was killed while this job ran")
    assert open_run(tmp_path / killed.run_ids[0]).record.status == "complete"
    assert state(tmp_path, following) == "queued"
    workers.start()
    until(lambda: state(tmp_path, following) == "complete")


def test_cancel_stops_a_running_job_and_the_worker_takes_the_next(tmp_path: Path, workers: Workers):
    job, following = jobs.submit(tmp_path, ask("slow")), jobs.submit(tmp_path, ask("fine"))
    workers.start()
    until(lambda: bool(jobs.status(tmp_path, job).run_ids))
    assert jobs.status(tmp_path, job).elapsed > 0
    jobs.cancel(tmp_path, job)
    until(lambda: state(tmp_path, following) == "complete")
    assert jobs.status(tmp_path, job).state == "cancelled"


def test_a_cancelled_download_says_what_is_kept(tmp_path: Path, workers: Workers):
    job = jobs.submit(tmp_path, ask("download"))
    workers.start()
    until(lambda: bool(jobs.status(tmp_path, job).run_ids))
    jobs.cancel(tmp_path, job)
    until(lambda: jobs.status(tmp_path, job).ended)
    ended = jobs.status(tmp_path, job)
    kept = "Cancelled; what was saved is kept. The download was stopped: what is complete stays."
    assert (ended.state, ended.message) == ("cancelled", kept)


def test_a_stopped_worker_ends_its_job_as_cancelled(tmp_path: Path, workers: Workers):
    job = jobs.submit(tmp_path, ask("slow"))
    process = workers.start()
    until(lambda: bool(jobs.status(tmp_path, job).run_ids))
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0
    ended = jobs.status(tmp_path, job)
    assert (ended.state, ended.message) == ("cancelled", "The worker was stopped; what was saved is kept.")


def test_only_one_worker_serves_a_folder(tmp_path: Path, workers: Workers):
    first = workers.start()
    until(lambda: _worker_pid(tmp_path) == first.pid)
    assert workers.start().wait(PATIENCE_SECONDS) == 0
    assert _worker_pid(tmp_path) == first.pid


def test_two_workers_share_a_queue_and_run_no_job_twice(tmp_path: Path, workers: Workers):
    slow = [jobs.submit(tmp_path, ask("slow"), "s") for _ in range(2)]
    for place in ("1", "2"):
        workers.start("--place", place)
    until(lambda: all(jobs.status(tmp_path, job).run_ids for job in slow))
    assert [state(tmp_path, job) for job in slow] == ["running"] * 2, "both at the same time"
    assert {jobs.status(tmp_path, job).worker for job in slow} == {1, 2}
    quick = [jobs.submit(tmp_path, ask("fine"), "s") for _ in range(12)]
    for job in slow:
        jobs.cancel(tmp_path, job)
    until(lambda: all(jobs.status(tmp_path, job).ended for job in quick))
    made = [len(list_runs(tmp_path, comparison_id=job)) for job in quick]
    assert made == [1] * len(quick)
    assert {state(tmp_path, job) for job in quick} == {"complete"}
    assert workers.start("--place", "2").wait(PATIENCE_SECONDS) == 0, "its place is taken"


def test_a_job_of_a_container_that_died_ends_by_its_heartbeat(tmp_path: Path):
    job = jobs.submit(tmp_path, ask("fine"))
    # A worker of another container, whose process id is one that lives here.
    with queue_db.database(tmp_path) as connection:
        beaten = time.time() - worker_slots.SILENT_SECONDS + 5
        row = (1, os.getpid(), "elsewhere", "2020-01-01T00:00:00+00:00", beaten)
        connection.execute("INSERT INTO workers (place, pid, host, since, heartbeat) VALUES (?, ?, ?, ?, ?)", row)
        queue_db.claim(connection, os.getpid(), "elsewhere")
        assert state(tmp_path, job) == "running"
        connection.execute("UPDATE workers SET heartbeat = heartbeat - 10")
    ended = jobs.status(tmp_path, job)
    assert (ended.state, ended.message) == ("failed", worker_slots.KILLED)


def test_ensure_worker_starts_one_once_and_it_ends_with_its_parent(tmp_path: Path):
    code = f"from pathlib import Path; from kvlab import jobs; r = Path({str(tmp_path)!r}); "
    code += "pids = {jobs.ensure_worker(r) for _ in range(3)}; print(*pids)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    pid = int(done.stdout)  # one number: the three calls found the same worker
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_worker_stays_while_another_process_wants_it(tmp_path: Path):
    code = f"from pathlib import Path; from kvlab import jobs; r = Path({str(tmp_path)!r}); jobs.ensure_worker(r); "
    stays = subprocess.Popen([sys.executable, "-c", code + "input()"], stdin=subprocess.PIPE)
    until(lambda: _worker_pid(tmp_path) is not None)
    pid = _worker_pid(tmp_path)
    if not visible_gpus():  # on the cores of the dashboard a job comes last
        until(lambda: psutil.Process(pid).nice() == min(19, psutil.Process().nice() + NICE))
    goes = [sys.executable, "-c", code + "print(jobs.release_workers(r))"]
    assert subprocess.run(goes, capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"
    time.sleep(3 * worker_slots.HEARTBEAT_SECONDS)
    assert _worker_pid(tmp_path) == pid
    stays.kill()
    stays.wait()
    until(lambda: _worker_pid(tmp_path) is None)


def _worker_pid(root: Path) -> int | None:
    with queue_db.database(root) as connection:
        return next((row["pid"] for row in worker_slots.live_workers(connection)), None)
