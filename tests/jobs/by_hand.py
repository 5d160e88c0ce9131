"""The queue worked off in the test's own process, and a cancel in the middle of a job."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db, worker
from kvlab.requests.compare import Progress

STAND_IN = "tests.jobs.stand_in:compare"


def work_off(root: Path, compare: str = worker.COMPARE, count: int = 1) -> str:
    """What the worker does with the next `count` jobs, without its process; returns the last one's id."""
    job_id = ""
    with queue_db.database(root) as connection:
        with queue_db.transaction(connection):
            assert worker_slots.take_slot(connection, os.getpid())
        for _ in range(count):
            job = queue_db.claim(connection, os.getpid(), worker_slots.host_id())
            assert job is not None
            worker.run_job(connection, root, job, compare, threading.Event())
            job_id = job["job_id"]
        connection.execute("DELETE FROM workers WHERE pid = ?", (os.getpid(),))
    return job_id


@contextmanager
def cancelled_after(done: int, root: Path, job_id: str) -> Iterator[None]:
    """In here the job is cancelled as soon as it has reported `done` parts."""
    report = worker.JobReporter.report

    def listen(self: worker.JobReporter, progress: Progress) -> None:
        report(self, progress)
        if progress.done == done:
            jobs.cancel(root, job_id)
            self._checked = 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.JobReporter, "report", listen)
        yield
