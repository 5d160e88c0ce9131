"""The worker process that owns the device: runs one job of the queue at a time.

`python -m kvlab.jobs.worker --runs DIR`. A crash or out-of-memory error here does not affect the web server.
"""

import argparse
import importlib
import json
import os
import signal
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kvlab.bench.request import BenchJob
from kvlab.common.atomic_write import transaction
from kvlab.common.formatting import hide_paths
from kvlab.common.lab import User, acting_for, lab
from kvlab.common.liveness import host_id
from kvlab.core.errors import UserError, rewrite_messages
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.jobs import client, queue_db
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs.access_check import check_disk
from kvlab.jobs.batch import run_batch
from kvlab.jobs.device_shares import WorkerSlot, with_local_device
from kvlab.jobs.job_reporter import JobReporter, log_line, remove_live
from kvlab.jobs.size_check import too_big
from kvlab.jobs.work import Work, read_request
from kvlab.models.fitting.request import FitJob
from kvlab.planning.plan import visible_gpus
from kvlab.requests.compare import CompareRequest, ImportRequest, RestoreRequest

LOOK_SECONDS = 0.05  # between two looks for further actions while some run
UNRECORDED = "The action ended without a result: is the disk full?"

RunLive = Callable[..., object]


@dataclass(eq=False)
class Turns:
    """A lock that threads hold in turn."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: deque[int] = field(default_factory=deque)  # threads; the first one holds the lock

    def __enter__(self) -> "Turns":
        with self._changed:
            self._waiting.append(threading.get_ident())
            self._changed.wait_for(self._is_mine)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()

    def pass_on(self) -> None:
        """Let every other waiting thread have its turn."""
        with self._changed:
            self._waiting.rotate(-1)
            self._changed.notify_all()
            self._changed.wait_for(self._is_mine)

    def _is_mine(self) -> bool:
        return self._waiting[0] == threading.get_ident()


def answer_waiting(root: Path, stop: threading.Event, slot: WorkerSlot, run: RunLive) -> bool:
    """Run all waiting actions of live sessions, and those that come meanwhile; False if there was none.

    Each runs in a thread of its own, and only one at a time: at the end of a step it lets the others go on. Actions of
    one session follow one another.
    """
    turns = Turns()
    threads = dict[str, threading.Thread]()
    last_of = dict[str, threading.Thread]()
    with queue_db.database(root) as connection:
        while True:
            mine = os.getpid(), host_id(), slot.number, slot.others
            job = None if stop.is_set() else queue_db.claim(connection, *mine, live=True)
            if job is not None:
                session = str(json.loads(job["request"]).get("session", ""))
                after = last_of.get(session)
                thread = threading.Thread(target=_run, args=(root, job, stop, slot.devices, turns, run, after))
                threads[job["job_id"]] = last_of[session] = thread
                thread.start()
            elif any(thread.is_alive() for thread in threads.values()):
                time.sleep(LOOK_SECONDS)
            else:
                for job_id in threads:  # a thread may fail before it can record that, for example on a full disk
                    queue_db.finish(connection, job_id, "failed", UNRECORDED)
                return bool(threads)


def _run(
    root: Path,
    job: sqlite3.Row,
    stop: threading.Event,
    devices: str,
    turns: Turns,
    run: RunLive,
    after: threading.Thread | None,
) -> None:
    """Run one claimed action, `after` the one before it in its session, and record how it ended."""
    if after is not None:
        after.join()
    log_path = queue_db.log_path(root, job["job_id"])
    with (
        queue_db.database(root) as connection,
        log_path.open("a", encoding="utf-8") as log,  # standard output belongs to a job in between whose steps this is
        acting_for(User(job["owner"], owns_all=True)),
        turns,
    ):
        reporter = JobReporter(connection, job["job_id"], stop, root, log)
        reporter.between_steps = turns.pass_on

        def work() -> None:
            request = with_local_device(read_request(job["request"]), devices)
            request = request.model_copy(update={"owner": job["owner"]})
            check_disk(root)
            if why := too_big(request):
                raise UserError(why)
            run(request, root, progress=reporter.report, cancelled=reporter.cancelled)

        state, message = reporter.outcome(work)
        log_line(message or state, log)
        queue_db.finish(connection, job["job_id"], state, message)


Compare = Callable[..., Any]
COMPARE = "kvlab.engine:compare"
RESTORE = "kvlab.engine.restore:restore"
IMPORT = "kvlab.watch.run_folder:run_import"
LIVE = "kvlab.live.job:run_live"
EVALUATE = "kvlab.evaluation.job:run_evaluation"
SAMPLE = "kvlab.evaluation.job:run_sample"
BENCH = "kvlab.bench.harness:run_bench"
FIT = "kvlab.models.fitting.fit:run_fit"
READ_FITS = "kvlab.core.fitted.files:read_fits_in"  # by name: torch is imported with the first job
NAMED = {EvalJob: EVALUATE, BenchJob: BENCH, FitJob: FIT}  # jobs whose results have a name
IDLE_SECONDS = 0.2
ONLY_SLOT = WorkerSlot()
NICE = 10  # of a worker on the CPU, which the dashboard needs too
AUTOGROUP = Path("/proc/self/autogroup")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the queue of one runs folder until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of runs; its queue is in .jobs")
    parser.add_argument("--while-kept", action="store_true", help="stop once no process needs this worker")
    parser.add_argument("--compare", default=COMPARE, help="the function that runs a request")
    parser.add_argument("--place", type=int, default=1, help="this worker's slot number")
    parser.add_argument("--nice", type=int, default=NICE, help="how far its priority is lowered where no GPU is seen")
    parser.add_argument("--devices", default="", help="its own GPUs, such as cuda:2; default: all")
    parser.add_argument("--others", default="", help="GPUs of the other workers")
    options = parser.parse_args(arguments)
    if lab() is not None:
        rewrite_messages(hide_paths)
    if not visible_gpus():
        # Lower this process's priority, so that the dashboard stays responsive on the same cores.
        os.nice(options.nice)
        if os.getsid(0) == os.getpid():  # Linux may schedule by session and ignore `nice`
            with suppress(OSError):
                AUTOGROUP.write_text(str(options.nice))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    slot = WorkerSlot(options.place, options.devices, tuple(filter(None, options.others.split(","))))
    serve(options.runs.absolute(), options.compare, stop, options.while_kept, slot)


def serve(
    root: Path, compare: str, stop: threading.Event, while_kept: bool = False, slot: WorkerSlot = ONLY_SLOT
) -> None:
    """Run jobs one after another until `stop` is set; returns at once if another worker has this slot."""
    with queue_db.database(root) as connection:
        with transaction(connection):
            worker_slots.fail_orphans(connection)
            if not worker_slots.take_slot(connection, os.getpid(), slot.number, slot.devices):
                return
        threading.Thread(target=_heartbeat, args=(root, stop, while_kept), daemon=True).start()

        answer_live = partial(
            answer_waiting, root, stop, slot, lambda *args, **named: load_function(LIVE)(*args, **named)
        )
        while not stop.is_set():
            if answer_live():
                continue
            job = queue_db.claim(connection, os.getpid(), host_id(), slot.number, slot.others)
            if job is None:
                stop.wait(IDLE_SECONDS)
            else:
                run_job(connection, root, job, compare, stop, slot.devices, answer_live)
        connection.execute("DELETE FROM workers WHERE pid = ? AND host = ?", (os.getpid(), host_id()))


def run_job(
    connection: sqlite3.Connection,
    root: Path,
    job: sqlite3.Row,
    compare: str,
    stop: threading.Event,
    devices: str = "",
    answer_live: Callable[[], object] = lambda: None,
) -> None:
    """Run one claimed job and record how it ended; its output goes to the job's log.

    `answer_live` runs the actions of live sessions that wait; it is called between the steps of jobs that measure no
    time, so that a conversation does not wait for their end.
    """
    reporter = JobReporter(connection, job["job_id"], stop, root)
    remove_live(root, job["job_id"])  # of an attempt whose worker was killed

    def work() -> None:
        request = with_local_device(read_request(job["request"]), devices)
        if isinstance(request, CompareRequest | ImportRequest | SampleJob):
            request = request.model_copy(update={"owner": job["owner"]})
        check_disk(root)
        if compare == COMPARE:
            if why := too_big(request):
                raise UserError(why)
            load_function(READ_FITS)(root.absolute() / "fit", only=lab() is not None)
        if not isinstance(request, BenchJob):
            reporter.between_steps = answer_live
        run, runs = _work(request, root, compare, job["job_id"], job["begun"] > 1)
        run(request, runs, progress=reporter.report, cancelled=reporter.cancelled)

    with _output_to(queue_db.log_path(root, job["job_id"])), acting_for(User(job["owner"], owns_all=True)):
        state, message = reporter.outcome(work)
        log_line(message or state)
    queue_db.finish(connection, job["job_id"], state, message)
    remove_live(root, job["job_id"])


def _work(request: Work, root: Path, compare: str, job_id: str, again: bool) -> tuple[Callable[..., object], Path]:
    """The function that runs the request, and its folder; runs of `aside` requests go to the queue's folder.

    A comparison gets the job's id. One that was started before resumes from its finished runs; other jobs do so by
    themselves.
    """
    if isinstance(request, RestoreRequest):
        log_line(f"restore the answer of {request.run_id}, at most {request.most_reruns} reruns")
        return load_function(RESTORE), root
    if isinstance(request, ImportRequest):
        log_line(f"{request.title}, model {request.model}")
        return partial(load_function(IMPORT), comparison_id=job_id), root
    if isinstance(request, EvalJob | BenchJob | FitJob):
        log_line(f"{request.kind} {request.name}")
        return load_function(NAMED[type(request)]), root
    run = partial(load_function(compare), comparison_id=job_id)
    named = partial(run, resume=True) if again else run
    if isinstance(request, SampleJob):
        log_line(f"one prompt of an evaluation, model {request.request.model}")
        return partial(load_function(SAMPLE), compare=named), root
    assert isinstance(request, CompareRequest)  # live sessions are answered in turns
    log_line(f"{len(request.choices)} methods, model {request.model}, {len(request.prompt)} characters")
    runs = client.aside_root(root) if request.aside else root
    if request.aside:
        queue_db.clear_aside(runs)
    if request.is_batch:
        return partial(run_batch, compare=load_function(compare), comparison_id=job_id), runs
    return named, runs


def load_function(dotted: str) -> Compare:
    """The function named `module:function`, imported late because it loads the model stack."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)


def _heartbeat(root: Path, stop: threading.Event, while_kept: bool) -> None:
    while not stop.wait(worker_slots.HEARTBEAT_SECONDS):
        try:
            with queue_db.database(root) as connection:
                beat = connection.execute(
                    "UPDATE workers SET heartbeat = ? WHERE pid = ? AND host = ?", (time.time(), os.getpid(), host_id())
                )
                # A worker that was silent for too long has lost its slot, and its job was marked failed.
                if beat.rowcount == 0 or (while_kept and not worker_slots.has_keeper(connection)):
                    stop.set()
        except UserError as error:
            log_line(str(error))  # a full disk for instance: the job itself reports it


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect everything this process prints, C libraries included, to a file."""
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


if __name__ == "__main__":
    main()
