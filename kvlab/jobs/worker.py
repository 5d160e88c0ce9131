"""The process that owns the device: takes one job at a time from the queue and runs it.

`python -m kvlab.jobs.worker --runs DIR`. A crash or an out-of-memory here leaves the web server standing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from kvlab.bench.request import BenchJob
from kvlab.common.errors import UserError, said_with
from kvlab.common.formatting import format_bytes, hide_paths
from kvlab.common.liveness import this_place
from kvlab.common.transactions import transaction
from kvlab.evaluate.request import EvalJob, SampleJob
from kvlab.fitting.request import FitJob
from kvlab.jobs import client, queue_db, worker_slots
from kvlab.jobs.batch import run_batch
from kvlab.jobs.device_shares import placed
from kvlab.jobs.disk_usage import folder_room
from kvlab.jobs.plan_check import too_big
from kvlab.jobs.quota_check import check_used
from kvlab.jobs.work import Work, read_request
from kvlab.planning.machine import visible_gpus
from kvlab.requests.compare import Progress, RescueRequest
from kvlab.server.disk_quota import disk_rules
from kvlab.server.offered_models import FITS
from kvlab.server.settings import lab
from kvlab.server.users import Person, Role, acting_for
from kvlab.trace.thinning import enough, thin, thinnable

Compare = Callable[..., Any]
COMPARE = "kvlab.engine:compare"
RESCUE = "kvlab.restore:rescue"
EVALUATE, SAMPLE = "kvlab.evaluate.job:run_evaluation", "kvlab.evaluate.job:run_sample"
BENCH, FIT = "kvlab.bench.job:run_bench", "kvlab.fitting.fit:run_fit"
NAMED = {EvalJob: EVALUATE, BenchJob: BENCH, FitJob: FIT}  # work whose results lie under a name of their own
IDLE_SECONDS = 0.4
REPORT_SECONDS = 0.2
NICE = 10  # of a worker that computes on the cores which the dashboard needs too
AUTOGROUP = Path("/proc/self/autogroup")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the queue of one runs folder until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of runs; its queue lies in .jobs")
    parser.add_argument("--while-kept", action="store_true", help="stop once no process wants a worker here")
    parser.add_argument("--compare", default=COMPARE, help="the function that runs a request")
    parser.add_argument("--place", type=int, default=1, help="which of the folder's workers this is")
    parser.add_argument("--devices", default="", help="GPUs that are its own, such as cuda:2; none: all there is")
    parser.add_argument("--others", default="", help="GPUs of the other workers")
    options = parser.parse_args(arguments)
    os.environ[FITS] = str(options.runs.absolute() / "fit")
    if lab() is not None:
        said_with(hide_paths)
    if not visible_gpus():
        _give_way()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    place = Place(options.place, options.devices, tuple(filter(None, options.others.split(","))))
    serve(options.runs.absolute(), options.compare, stop, options.while_kept, place)


def _give_way() -> None:
    """Let what people look at go first: a job takes the cores that nobody else wants."""
    os.nice(NICE)
    if os.getsid(0) == os.getpid():  # Linux may weigh sessions against each other, and then heeds no process's own
        with suppress(OSError):
            AUTOGROUP.write_text(str(NICE))


@dataclass(frozen=True)
class Place:
    """Which of the folder's workers this is, the GPUs that are its own (none: all), and those of the others."""

    number: int = 1
    devices: str = ""
    others: tuple[str, ...] = ()


def serve(root: Path, compare: str, stop: threading.Event, while_kept: bool = False, place: Place = Place()) -> None:
    """Run jobs one after another until `stop` is set; returns at once when another worker has this place."""
    with queue_db.database(root) as connection:
        with transaction(connection):
            worker_slots.bury_orphans(connection)
            if not worker_slots.take_place(connection, os.getpid(), place.number, place.devices):
                return
        threading.Thread(target=_heartbeat, args=(root, stop, while_kept), daemon=True).start()
        while not stop.is_set():
            job = queue_db.claim(connection, os.getpid(), this_place(), place.number, place.others)
            if job is None:
                stop.wait(IDLE_SECONDS)
            else:
                run_job(connection, root, job, compare, stop, place.devices)
        worker_slots.leave_place(connection, os.getpid())


def run_job(
    connection: sqlite3.Connection, root: Path, job: sqlite3.Row, compare: str, stop: threading.Event, devices: str = ""
) -> None:
    """Run one claimed job and record how it ended; whatever it prints goes to the job's log."""
    talk = JobTalk(connection, job["job_id"], stop, root)
    with _output_to(queue_db.log_path(root, job["job_id"])), acting_for(Person(job["owner"], Role.ADMINISTER)):
        try:
            request = placed(read_request(job["request"]), devices)
            check_used(connection, root, job["owner"])
            if compare == COMPARE and (why := too_big(request, root)):
                raise UserError(why)
            work, runs = _work(request, root, compare, job["job_id"], job["begun"] > 1)
            work(request, runs, progress=talk.report, cancelled=talk.cancelled)
            state, message = ("cancelled", talk.reason) if talk.reason else ("complete", "")
        except KeyboardInterrupt:
            state, message = "cancelled", "Stopped."
        except UserError as error:
            state, message = ("cancelled", f"{talk.reason} {error}") if talk.reason else ("failed", str(error))
        except Exception as error:
            traceback.print_exc()
            state, message = "failed", _sentence(error)
        _log(message or state)
        _make_room(root)
    queue_db.finish(connection, job["job_id"], state, message)


def _work(request: Work, root: Path, compare: str, job_id: str, again: bool) -> tuple[Callable[..., object], Path]:
    """The function that does what is asked, and the folder it goes to: a look beforehand lies with the queue.

    A comparison has the job's name. Where the job was begun before it goes on from the runs it finished; other work
    does so by itself.
    """
    if isinstance(request, RescueRequest):
        _log(f"who killed {request.run_id}, at most {request.most_reruns} reruns")
        return _load(RESCUE), root
    if isinstance(request, EvalJob | BenchJob | FitJob):
        _log(f"{request.kind} {request.name}")
        return _load(NAMED[type(request)]), root
    if isinstance(request, SampleJob):
        _log(f"one prompt of an evaluation, model {request.request.model}")
        return partial(_load(SAMPLE), compare=_named(compare, job_id, again)), root
    _log(f"{len(request.choices)} methods, model {request.model}, {len(request.prompt)} characters")
    runs = client.aside_root(root) if request.aside else root
    if request.aside:
        queue_db.clear_aside(runs)
    if request.is_batch:
        return partial(run_batch, compare=_load(compare), comparison_id=job_id), runs
    return _named(compare, job_id, again), runs


def _named(compare: str, job_id: str, again: bool) -> Callable[..., Any]:
    named = partial(_load(compare), comparison_id=job_id)
    return partial(named, resume=True) if again else named


def _sentence(error: Exception) -> str:
    """The first line of what went wrong; some libraries append a page of advice, which the log has."""
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first} (see the log)."


class JobTalk:
    """What a running job says to the queue and hears from it, a few times a second at most."""

    def __init__(self, connection: sqlite3.Connection, job_id: str, stop: threading.Event, root: Path) -> None:
        self.connection, self.job_id, self.stop, self.root = connection, job_id, stop, root
        self.reason = ""
        self._run_ids: list[str] = []
        self._last: Progress | None = None
        self._told = self._asked = 0.0

    def report(self, progress: Progress) -> None:
        """Show this progress; a new stage or run always, otherwise a few times a second."""
        last, self._last = self._last, progress
        is_new = last is None or (last.stage, last.run_id) != (progress.stage, progress.run_id)
        if is_new:
            _log(progress.stage)
        if not is_new and progress.done < progress.total and time.monotonic() - self._told < REPORT_SECONDS:
            return
        if progress.run_id and progress.run_id not in self._run_ids:
            self._run_ids.append(progress.run_id)
        self._told = time.monotonic()
        self.connection.execute(
            "UPDATE jobs SET progress = ?, run_ids = ? WHERE job_id = ?",
            (progress.model_dump_json(), json.dumps(self._run_ids), self.job_id),
        )

    def cancelled(self) -> bool:
        """Whether the job should stop now."""
        if self.stop.is_set():
            self.reason = self.reason or "The worker was stopped; what was saved is kept."
        elif not self.reason and time.monotonic() - self._asked >= REPORT_SECONDS:
            self._asked = time.monotonic()
            row = self.connection.execute("SELECT cancel FROM jobs WHERE job_id = ?", (self.job_id,)).fetchone()
            self.reason = "Cancelled; what was saved is kept." if row["cancel"] else self._no_room()
        return bool(self.reason)

    def _no_room(self) -> str:
        """Why the folder takes nothing more, in a sentence; empty where it does."""
        full = folder_room(self.root).full
        return f"Stopped: {full}. What was finished is kept, and the job can go on once there is room." if full else ""


def _load(dotted: str) -> Compare:
    """The function named `module:function`; imported here only, as it brings the model stack with it."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)


def _make_room(root: Path) -> None:
    """Thin old recordings where the lab's rule says so, as many as bring the folder under its limit's warning."""
    try:
        rules = disk_rules()
        if rules.thin_older_than is None:
            return
        found = thinnable(root, rules.thin_older_than)
        if rules.limit is not None:
            found = enough(found, folder_room(root).used - rules.warn * rules.limit)
        if freed := thin(root, found):
            _log(f"{len(found)} old recordings were thinned, which freed {format_bytes(freed)}")
    except UserError as error:
        _log(str(error))


def _heartbeat(root: Path, stop: threading.Event, while_kept: bool) -> None:
    while not stop.wait(worker_slots.HEARTBEAT_SECONDS):
        try:
            with queue_db.database(root) as connection:
                # Who was silent for too long has lost its place, and its job was called failed.
                if not worker_slots.beats(connection, os.getpid()) or (
                    while_kept and not worker_slots.is_kept(connection)
                ):
                    stop.set()
        except UserError as error:
            _log(str(error))  # a full disk for instance: the job itself will say so


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send everything this process prints, C libraries included, to a file."""
    saved = [(stream, os.dup(stream)) for stream in (1, 2)]
    with path.open("a", buffering=1, encoding="utf-8") as file:
        for stream, _ in saved:
            os.dup2(file.fileno(), stream)
        try:
            with redirect_stdout(file), redirect_stderr(file):
                yield
        finally:
            for stream, copy in saved:
                os.dup2(copy, stream)
                os.close(copy)


def _log(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", flush=True)


if __name__ == "__main__":
    main()
