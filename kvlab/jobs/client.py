"""Client side of the queue for pages and commands: submit, inspect, cancel and resume jobs, and start workers."""

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kvlab.common.atomic_write import transaction
from kvlab.common.lab import acting, may_see, require_owner
from kvlab.common.liveness import host_id
from kvlab.core import Frozen, UserError
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.jobs.access_check import check_access, check_disk
from kvlab.jobs.device_shares import VISIBLE, device_of, server_shares
from kvlab.jobs.work import Work, read_request
from kvlab.requests.compare import Progress

JobState = Literal["queued", "running", "complete", "cancelled", "failed"]
FIELDS = (
    "job_id, session, owner, title, state, message, created, started, finished, cancel, progress, run_ids, "
    "worker_place, coalesce(json_extract(request, '$.private'), 0) AS private"
)
LONGEST_TAIL = 256 * 1024
# How long threads of torch spin before they sleep. On two cores, mini's decode step with one other busy process takes
# 8.5 ms with this and 133 ms with the default of 300,000; without one it takes about 5 % longer than by default.
SPIN_COUNT = "3000"


class JobStatus(Frozen):
    """Current state of a job. Its id is also the id of the comparison its runs belong to."""

    job_id: str
    title: str
    owner: str = ""
    state: JobState
    message: str = ""
    position: int | None = None
    progress: Progress | None = None
    elapsed: float = 0.0
    created: float
    cancelling: bool = False
    run_ids: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    worker: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("complete", "cancelled", "failed")


def submit(root: Path, request: Work, session: str = "") -> str:
    """Queue a job of the acting user and return its id; users take turns, and so do sessions of unnamed users.

    Raises UserError if the user may not run this, or the disk is full.
    """
    check_access(root, request)
    job_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    title = request.title or textwrap.shorten(getattr(request, "prompt", "")[:400], 80, placeholder=" …")
    check_disk(root)
    with queue_db.database(root) as connection:
        connection.execute(
            "INSERT INTO jobs (job_id, session, owner, device, title, request, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job_id, session, acting().name, device_of(request), title, request.model_dump_json(), time.time()),
        )
    return job_id


def aside_root(root: Path) -> Path:
    """Folder of the runs of `aside` requests: with the queue, in no list of runs."""
    return Path(root) / queue_db.FOLDER / "aside"


def status(root: Path, job_id: str, log_lines: int = 0) -> JobStatus:
    """Current state of the job, with the last `log_lines` of its log. Raises UserError if there is no such job."""
    with queue_db.database(root) as connection:
        worker_slots.fail_orphans(connection)
        row = connection.execute(f"SELECT {FIELDS} FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row is None or not may_see(row["owner"], bool(row["private"])):
            raise UserError(f"There is no job {job_id} in {root}: it may belong to another runs folder.")
        return _status(row, queue_db.queue_order(connection), tail(queue_db.log_path(root, job_id), log_lines))


def list_jobs(root: Path, *, open_only: bool = False, limit: int = 50) -> list[JobStatus]:
    """Jobs that the acting user may see, newest first; `open_only` skips those that ended."""
    where = "WHERE state IN ('queued', 'running')" if open_only else ""
    with queue_db.database(root) as connection:
        worker_slots.fail_orphans(connection)
        rows = connection.execute(f"SELECT {FIELDS} FROM jobs {where} ORDER BY number DESC LIMIT ?", (limit,))
        waiting = queue_db.queue_order(connection)
        return [_status(row, waiting) for row in rows.fetchall() if may_see(row["owner"], bool(row["private"]))]


def cancel(root: Path, job_id: str) -> None:
    """Remove a waiting job from the queue, or ask the worker to stop a running one; an ended job stays as it is.

    Raises UserError if there is no such job, or it is another user's.
    """
    require_owner(status(root, job_id).owner, "cancel this job")
    with queue_db.database(root) as connection, transaction(connection):
        row = connection.execute("SELECT state FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row["state"] == "queued":
            queue_db.finish(connection, job_id, "cancelled", "Removed from the queue before it started.")
        elif row["state"] == "running":
            connection.execute("UPDATE jobs SET cancel = 1 WHERE job_id = ?", (job_id,))


def resume(root: Path, job_id: str) -> None:
    """Put an interrupted job back into the queue: what it saved stays, and only the rest is done.

    Raises UserError if there is no such job, it is another user's, or the disk is full.
    """
    require_owner(status(root, job_id).owner, "resume this job")
    check_disk(root)
    with queue_db.database(root) as connection:
        connection.execute(
            "UPDATE jobs SET state = 'queued', message = '', cancel = 0, started = NULL, finished = NULL "
            "WHERE job_id = ? AND state IN ('cancelled', 'failed')",
            (job_id,),
        )


def request_of(root: Path, job_id: str) -> Work:
    """The job's request; raises as `status`."""
    status(root, job_id)
    with queue_db.database(root) as connection:
        row = connection.execute("SELECT request FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return read_request(row["request"])


def ensure_worker(root: Path) -> int:
    """Start every worker of this runs folder that is not alive; returns the process id of the first.

    Workers end once no process that requested them is alive: several dashboards may share a folder.
    """
    root = Path(root).absolute()
    wanted = server_shares()
    with queue_db.database(root) as connection, transaction(connection):
        # Record that this process needs the folder's workers; a dashboard repeats it.
        connection.execute(
            "INSERT INTO keepers (pid, host, since, heartbeat) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (pid, host) DO UPDATE SET heartbeat = excluded.heartbeat",
            (os.getpid(), host_id(), datetime.now(UTC).isoformat(), time.time()),
        )
        alive = {row["place"]: row["pid"] for row in worker_slots.live_workers(connection)}
        missing = [share for share in wanted if share.place not in alive]
        if missing:
            worker_slots.fail_orphans(connection)
        for share in missing:
            command = [
                sys.executable,
                "-P",
                "-m",
                "kvlab.jobs.worker",
                "--runs",
                str(root),
                "--while-kept",
                "--place",
                str(share.place),
                *(["--devices", share.devices, "--others", share.others] if share.devices else []),
            ]
            visible = {VISIBLE: ",".join(share.ids)} if share.ids else {}
            environment = {"GOMP_SPINCOUNT": SPIN_COUNT} | os.environ | visible
            try:
                with (root / queue_db.FOLDER / "worker.log").open("ab") as log:
                    # A session of its own: Ctrl-C in the server's terminal must not cut a run in the middle.
                    process = subprocess.Popen(
                        command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
            except OSError as error:
                raise UserError(
                    f"No worker can be started for {root} ({error}): is the disk full or not writable?"
                ) from error
            alive[share.place] = process.pid
            worker_slots.take_slot(connection, alive[share.place], share.place, share.devices)
        return alive[min(alive)]


def release_workers(root: Path) -> list[int]:
    """Withdraw this process's need for workers; returns the process ids to stop if no other process needs them."""
    with queue_db.database(Path(root).absolute()) as connection, transaction(connection):
        connection.execute("DELETE FROM keepers WHERE pid = ? AND host = ?", (os.getpid(), host_id()))
        if worker_slots.has_keeper(connection):
            return []
        return [row["pid"] for row in worker_slots.live_workers(connection) if row["host"] == host_id()]


def tail(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of a log; of a progress bar only its last state."""
    if count < 1 or not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return tuple(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n") if line)[-count:]


def _status(row: sqlite3.Row, waiting: list[sqlite3.Row], log: tuple[str, ...] = ()) -> JobStatus:
    until = row["finished"] or time.time()
    places = (place for place, other in enumerate(waiting, 1) if other["job_id"] == row["job_id"])
    return JobStatus(
        job_id=row["job_id"],
        title=row["title"],
        owner=row["owner"],
        state=row["state"],
        message=row["message"],
        position=next(places, None),
        progress=Progress.model_validate_json(row["progress"]) if row["progress"] else None,
        elapsed=max(0.0, until - row["started"]) if row["started"] else 0.0,  # a clock may be set back
        created=row["created"],
        cancelling=bool(row["cancel"]) and row["state"] == "running",
        run_ids=tuple(json.loads(row["run_ids"])),
        log=log,
        worker=row["worker_place"] if row["state"] == "running" else None,
    )


def place_words(root: Path, status: JobStatus) -> str:
    """`next in the queue, after the job that runs now` or `3 jobs before this one`; empty unless it is queued."""
    if status.state != "queued":
        return ""
    running = sum(job.state == "running" for job in list_jobs(root, open_only=True))
    now = {0: "", 1: ", after the job that runs now"}.get(running, f", after the {running} jobs that run now")
    ahead = (status.position or 1) - 1
    return f"next in the queue{now}" if ahead == 0 else f"{ahead} {'job' if ahead == 1 else 'jobs'} before this one"


def busy_words() -> str:
    """`machine busy: load 3 on 2 cores` if more processes want to compute than there are cores; else empty."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        "" if load <= cores + 0.5 else f"machine busy: load {load:.0f} on {cores} {'core' if cores == 1 else 'cores'}"
    )
