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

from kvlab.errors import UserError
from kvlab.jobs import store
from kvlab.jobs.reach import check_reach
from kvlab.jobs.work import Work, read_request
from kvlab.requests import Progress
from kvlab.trace.transactions import transaction

JobState = Literal["queued", "running", "complete", "cancelled", "failed"]
FIELDS = "job_id, session, title, state, message, created, started, finished, cancel, progress, run_ids"
LONGEST_TAIL = 256 * 1024


class JobStatus(BaseModel):
    """A job as it is now. Its id is also the id of the comparison its runs belong to."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    title: str
    state: JobState
    message: str = ""
    position: int | None = None
    progress: Progress | None = None
    elapsed: float = 0.0
    created: float
    cancelling: bool = False
    run_ids: tuple[str, ...] = ()
    log: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ("complete", "cancelled", "failed")


def submit(root: Path, request: Work, session: str = "") -> str:
    """The id of a new job at the end of this session's queue; sessions take turns."""
    check_reach(root, request)
    job_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    title = request.title or textwrap.shorten(getattr(request, "prompt", "")[:400], 80, placeholder=" …")
    with store.database(root) as connection:
        connection.execute(
            "INSERT INTO jobs (job_id, session, title, request, created) VALUES (?, ?, ?, ?, ?)",
            (job_id, session, title, request.model_dump_json(), time.time()),
        )
    return job_id


def aside_root(root: Path) -> Path:
    """Where the runs of requests that are `aside` lie: with the queue, in no list of runs."""
    return Path(root) / store.FOLDER / "aside"


def status(root: Path, job_id: str, log_lines: int = 0) -> JobStatus:
    """The job as it is now, with the last lines of its log where asked.

    Raises:
        UserError: there is no such job.
    """
    with store.database(root) as connection:
        store.bury_orphans(connection)
        row = connection.execute(f"SELECT {FIELDS} FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row is None:
            raise UserError(f"There is no job {job_id} in {root}: it may belong to another runs folder.")
        return _status(row, store.queued_in_turn(connection), tail(store.log_path(root, job_id), log_lines))


def list_jobs(root: Path, *, open_only: bool = False, limit: int = 50) -> list[JobStatus]:
    """Jobs, newest first; `open_only` leaves out those that ended."""
    where = "WHERE state IN ('queued', 'running')" if open_only else ""
    with store.database(root) as connection:
        store.bury_orphans(connection)
        rows = connection.execute(f"SELECT {FIELDS} FROM jobs {where} ORDER BY number DESC LIMIT ?", (limit,))
        turn = store.queued_in_turn(connection)
        return [_status(row, turn) for row in rows.fetchall()]


def cancel(root: Path, job_id: str) -> None:
    """Take a waiting job out of the queue, or ask the worker to stop a running one; an ended job stays as it is.

    Raises:
        UserError: there is no such job.
    """
    status(root, job_id)
    with store.database(root) as connection, transaction(connection):
        row = connection.execute("SELECT state FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row["state"] == "queued":
            store.finish(connection, job_id, "cancelled", "Taken out of the queue before it began.")
        elif row["state"] == "running":
            connection.execute("UPDATE jobs SET cancel = 1 WHERE job_id = ?", (job_id,))


def request_of(root: Path, job_id: str) -> Work:
    """What the job was asked to do; raises as `status`."""
    with store.database(root) as connection:
        row = connection.execute("SELECT request FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    if row is None:
        raise UserError(f"There is no job {job_id} in {root}: it may belong to another runs folder.")
    return read_request(row["request"])


def ensure_worker(root: Path) -> int:
    """The process id of the worker of this runs folder, started now if none lives.

    It ends once no process that asked for it lives: several dashboards may share a folder.
    """
    root = Path(root).absolute()
    with store.database(root) as connection, transaction(connection):
        store.keep(connection, os.getpid())
        if (alive := store.live_worker(connection)) is not None:
            return alive
        store.bury_orphans(connection)
        pid = _start_worker(root)
        store.take_place(connection, pid)
        return pid


def release_worker(root: Path) -> int | None:
    """This process needs the worker no longer: its process id where nobody else does, to be stopped."""
    with store.database(Path(root).absolute()) as connection, transaction(connection):
        store.release(connection, os.getpid())
        return None if store.is_kept(connection) else store.live_worker(connection)


def tail(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of a log; a line redrawn by a progress bar appears as it was drawn last."""
    if count < 1 or not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LONGEST_TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return tuple(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n") if line)[-count:]


def _start_worker(root: Path) -> int:
    command = [sys.executable, "-P", "-m", "kvlab.jobs.worker", "--runs", str(root), "--while-kept"]
    with (root / store.FOLDER / "worker.log").open("ab") as log:
        # A session of its own: Ctrl-C in the server's terminal must not cut a run in the middle.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return process.pid


def _status(row: sqlite3.Row, turn: list[str], log: tuple[str, ...] = ()) -> JobStatus:
    until = row["finished"] or time.time()
    return JobStatus(
        job_id=row["job_id"],
        title=row["title"],
        state=row["state"],
        message=row["message"],
        position=turn.index(row["job_id"]) + 1 if row["job_id"] in turn else None,
        progress=Progress.model_validate_json(row["progress"]) if row["progress"] else None,
        elapsed=until - row["started"] if row["started"] else 0.0,
        created=row["created"],
        cancelling=bool(row["cancel"]) and row["state"] == "running",
        run_ids=tuple(json.loads(row["run_ids"])),
        log=log,
    )
