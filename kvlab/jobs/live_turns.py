"""Actions of live sessions take turns in the worker, so that several people are answered at the same time."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from kvlab.common.liveness import host_id
from kvlab.common.users import User, acting_for
from kvlab.core.errors import UserError
from kvlab.jobs import queue_db
from kvlab.jobs.access_check import check_disk
from kvlab.jobs.device_shares import WorkerSlot, with_local_device
from kvlab.jobs.job_reporter import JobReporter, log_line
from kvlab.jobs.size_check import too_big
from kvlab.jobs.work import read_request

LOOK_SECONDS = 0.05  # between two looks for further actions while some run
UNRECORDED = "The action ended without a result: is the disk full?"

RunLive = Callable[..., object]


class Turns:
    """A lock that threads hold in turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()  # threads; the first one holds the lock

    def __enter__(self) -> Turns:
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
