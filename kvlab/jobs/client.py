"""What a page or a command may ask of the queue: submit, look, cancel, and see to it that a worker runs."""

from __future__ import annotations

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

from pydantic import BaseModel, ConfigDict

from kvlab.common.errors import UserError
from kvlab.common.liveness import this_place
from kvlab.common.transactions import transaction
from kvlab.jobs import queue_db, worker_slots
from kvlab.jobs.access_check import check_reach
from kvlab.jobs.device_shares import Share, device_of, shares_here
from kvlab.jobs.quota_check import admit, admit_again
from kvlab.jobs.work import Work, read_request
from kvlab.requests.compare import Progress
from kvlab.server.users import Role, acting, may_see, require

JobState = Literal["queued", "running", "complete", "cancelled", "failed"]
FIELDS = (
    "job_id, session, owner, title, state, message, created, started, finished, cancel, progress, run_ids, "
    "worker_place, coalesce(json_extract(request, '$.private'), 0) AS private"
)
LONGEST_TAIL = 256 * 1024


class JobStatus(BaseModel):
    """A job as it is now. Its id is also the id of the comparison its runs belong to."""

    model_config = ConfigDict(frozen=True)

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
    """The id of a new job of the person who acts; people take turns, and sessions where people have no names.

    Raises:
        UserError: the person may not run anything, or has used up what they may.
    """
    person = require(Role.RUN, "start runs")
    check_reach(root, request)
    job_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    title = request.title or textwrap.shorten(getattr(request, "prompt", "")[:400], 80, placeholder=" …")
    with queue_db.database(root) as connection:
        admit(connection, root, request, person.name)
        connection.execute(
            "INSERT INTO jobs (job_id, session, owner, device, title, request, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job_id, session, person.name, device_of(request), title, request.model_dump_json(), time.time()),
        )
    return job_id


def aside_root(root: Path) -> Path:
    """Where the runs of requests that are `aside` lie: with the queue, in no list of runs."""
    return Path(root) / queue_db.FOLDER / "aside"


def status(root: Path, job_id: str, log_lines: int = 0) -> JobStatus:
    """The job as it is now, with the last lines of its log where asked.

    Raises:
        UserError: there is no such job.
    """
    with queue_db.database(root) as connection:
        worker_slots.bury_orphans(connection)
        row = connection.execute(f"SELECT {FIELDS} FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row is None or not may_see(row["owner"], bool(row["private"])):
            raise UserError(f"There is no job {job_id} in {root}: it may belong to another runs folder.")
        return _status(row, queue_db.queued_in_turn(connection), tail(queue_db.log_path(root, job_id), log_lines))


def list_jobs(root: Path, *, open_only: bool = False, limit: int = 50) -> list[JobStatus]:
    """Jobs the person who acts may see, newest first; `open_only` leaves out those that ended."""
    where = "WHERE state IN ('queued', 'running')" if open_only else ""
    with queue_db.database(root) as connection:
        worker_slots.bury_orphans(connection)
        rows = connection.execute(f"SELECT {FIELDS} FROM jobs {where} ORDER BY number DESC LIMIT ?", (limit,))
        turn = queue_db.queued_in_turn(connection)
        return [_status(row, turn) for row in rows.fetchall() if may_see(row["owner"], bool(row["private"]))]


def cancel(root: Path, job_id: str) -> None:
    """Take a waiting job out of the queue, or ask the worker to stop a running one; an ended job stays as it is.

    Raises:
        UserError: there is no such job, or it is another person's and the one who acts is no administrator.
    """
    owner, person = status(root, job_id).owner, acting()
    if person.role < Role.ADMINISTER and owner != person.name:
        raise UserError(f"This job is {owner or 'somebody'}'s: only they and an administrator may cancel it.")
    with queue_db.database(root) as connection, transaction(connection):
        row = connection.execute("SELECT state FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row["state"] == "queued":
            queue_db.finish(connection, job_id, "cancelled", "Taken out of the queue before it began.")
        elif row["state"] == "running":
            connection.execute("UPDATE jobs SET cancel = 1 WHERE job_id = ?", (job_id,))


def go_on(root: Path, job_id: str) -> None:
    """Put a job that was cut short back into the queue: what it saved stays, and only the rest is done.

    Raises:
        UserError: there is no such job, it is another person's, or its owner may have no more.
    """
    job, person = status(root, job_id), require(Role.RUN, "start runs")
    if person.role < Role.ADMINISTER and job.owner != person.name:
        raise UserError(f"This job is {job.owner or 'somebody'}'s: only they and an administrator may go on with it.")
    with queue_db.database(root) as connection:
        admit_again(connection, root, job.owner)
        queue_db.put_back(connection, job_id)


def request_of(root: Path, job_id: str) -> Work:
    """What the job was asked to do; raises as `status`."""
    status(root, job_id)
    with queue_db.database(root) as connection:
        row = connection.execute("SELECT request FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return read_request(row["request"])


def ensure_worker(root: Path) -> int:
    """The process id of the first worker of this runs folder; every worker that does not live is started now.

    They end once no process that asked for them lives: several dashboards may share a folder.
    """
    root = Path(root).absolute()
    wanted = shares_here()
    with queue_db.database(root) as connection, transaction(connection):
        worker_slots.keep(connection, os.getpid())
        alive = {row["place"]: row["pid"] for row in worker_slots.live_workers(connection)}
        missing = [share for share in wanted if share.place not in alive]
        if missing:
            worker_slots.bury_orphans(connection)
        for share in missing:
            alive[share.place] = _start_worker(root, share)
            worker_slots.take_place(connection, alive[share.place], share.place, share.devices)
        return alive[min(alive)]


def release_workers(root: Path) -> list[int]:
    """This process needs the workers no longer: their process ids where nobody else does, to be stopped."""
    with queue_db.database(Path(root).absolute()) as connection, transaction(connection):
        worker_slots.release(connection, os.getpid())
        kept = worker_slots.is_kept(connection)
        return (
            [] if kept else [row["pid"] for row in worker_slots.live_workers(connection) if row["host"] == this_place()]
        )


def tail(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of a log; a line redrawn by a progress bar appears as it was drawn last."""
    if count < 1 or not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return tuple(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n") if line)[-count:]


def _start_worker(root: Path, share: Share) -> int:
    command = [sys.executable, "-P", "-m", "kvlab.jobs.worker", "--runs", str(root), "--while-kept", *share.arguments]
    environment = os.environ | share.environment
    try:
        with (root / queue_db.FOLDER / "worker.log").open("ab") as log:
            # A session of its own: Ctrl-C in the server's terminal must not cut a run in the middle.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        raise UserError(f"No worker can be started for {root} ({error}): is the disk full or not writable?") from error
    return process.pid


def _status(row: sqlite3.Row, turn: list[str], log: tuple[str, ...] = ()) -> JobStatus:
    until = row["finished"] or time.time()
    return JobStatus(
        job_id=row["job_id"],
        title=row["title"],
        owner=row["owner"],
        state=row["state"],
        message=row["message"],
        position=turn.index(row["job_id"]) + 1 if row["job_id"] in turn else None,
        progress=Progress.model_validate_json(row["progress"]) if row["progress"] else None,
        elapsed=max(0.0, until - row["started"]) if row["started"] else 0.0,  # a clock may be set back
        created=row["created"],
        cancelling=bool(row["cancel"]) and row["state"] == "running",
        run_ids=tuple(json.loads(row["run_ids"])),
        log=log,
        worker=row["worker_place"] if row["state"] == "running" else None,
    )
