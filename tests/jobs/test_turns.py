"""Whose turn it is over people, and what the queue keeps of an older one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.common.lab import ALONE, User, set_current_user
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.requests.compare import CompareRequest

ANN, BEN = User("ann"), User("ben")


def ask(device: str = "auto") -> CompareRequest:
    return CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),), device=device)


@pytest.fixture(autouse=True)
def nobody_afterwards() -> Iterator[None]:
    yield
    set_current_user(lambda: ALONE)


def submit(root: Path, person: User, session: str) -> str:
    set_current_user(lambda: person)
    return jobs.submit(root, ask(), session)


def run_all(root: Path, pid: int = 1, **claimed: object) -> list[str]:
    ran = []
    with queue_db.database(root) as connection:
        while (job := queue_db.claim(connection, pid, **claimed)) is not None:
            ran.append(job["job_id"])
            queue_db.finish(connection, job["job_id"], "complete")
    return ran


def test_five_reloads_of_one_person_do_not_go_before_anothers_first_job(tmp_path: Path):
    ann = [submit(tmp_path, ANN, f"tab {number}") for number in range(5)]
    ben = [submit(tmp_path, BEN, "one tab") for _ in range(2)]
    assert jobs.status(tmp_path, ben[0]).position == 2
    assert run_all(tmp_path) == [ann[0], ben[0], ann[1], ben[1], ann[2], ann[3], ann[4]]


def test_without_names_sessions_take_turns(tmp_path: Path):
    first = [jobs.submit(tmp_path, ask(), "one") for _ in range(2)]
    second = jobs.submit(tmp_path, ask(), "two")
    assert run_all(tmp_path) == [first[0], second, first[1]]


def test_only_the_owner_and_the_terminal_cancel_a_job(tmp_path: Path):
    job, other = submit(tmp_path, ANN, "a"), submit(tmp_path, ANN, "a")
    set_current_user(lambda: BEN)
    with pytest.raises(UserError, match="It belongs to ann: only its owner may cancel this job"):
        jobs.cancel(tmp_path, job)
    assert jobs.status(tmp_path, job).state == "queued"
    set_current_user(lambda: ANN)
    jobs.cancel(tmp_path, job)
    set_current_user(lambda: ALONE)
    jobs.cancel(tmp_path, other)
    assert {jobs.status(tmp_path, name).state for name in (job, other)} == {"cancelled"}


def test_a_queue_of_version_1_keeps_every_job_and_its_worker(tmp_path: Path):
    # As version 1 made it: no owner, no version, one worker.
    (tmp_path / ".jobs").mkdir()
    with closing(sqlite3.connect(tmp_path / ".jobs" / "queue.sqlite", isolation_level=None)) as old:
        old.executescript("""
            CREATE TABLE jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT UNIQUE NOT NULL,
                session TEXT NOT NULL, title TEXT NOT NULL, request TEXT NOT NULL,
                state TEXT NOT NULL DEFAULT 'queued', message TEXT NOT NULL DEFAULT '', created REAL NOT NULL,
                started REAL, finished REAL, worker_pid INTEGER, cancel INTEGER NOT NULL DEFAULT 0, progress TEXT,
                run_ids TEXT NOT NULL DEFAULT '[]');
            CREATE TABLE worker (place INTEGER PRIMARY KEY CHECK (place = 1), pid INTEGER NOT NULL,
                host TEXT NOT NULL, since TEXT NOT NULL, heartbeat REAL NOT NULL);
            CREATE TABLE keepers (pid INTEGER NOT NULL, host TEXT NOT NULL, since TEXT NOT NULL,
                heartbeat REAL NOT NULL, PRIMARY KEY (pid, host));
        """)
        rows = [("done", "complete", 5.0), ("waits", "queued", None)]
        for name, state, started in rows:
            old.execute(
                "INSERT INTO jobs (job_id, session, title, request, state, created, started, run_ids) "
                "VALUES (?, 's', 'a title', ?, ?, 1, ?, ?)",
                (name, ask().model_dump_json(), state, started, json.dumps(["r"])),
            )
        old.execute("INSERT INTO worker VALUES (1, 7, 'elsewhere', '2020-01-01T00:00:00+00:00', 99e9)")
    done, waits = jobs.status(tmp_path, "done"), jobs.status(tmp_path, "waits")
    assert (done.state, done.title, done.run_ids, done.owner) == ("complete", "a title", ("r",), "")
    assert (waits.state, waits.position) == ("queued", 1)
    assert jobs.request_of(tmp_path, "waits") == ask()
    with queue_db.database(tmp_path) as connection:
        assert [row["pid"] for row in worker_slots.live_workers(connection)] == [7]
    assert run_all(tmp_path) == ["waits"]


def test_a_job_that_names_a_gpu_waits_for_the_worker_that_has_it(tmp_path: Path):
    anywhere, second = jobs.submit(tmp_path, ask(), "s"), jobs.submit(tmp_path, ask("cuda:1"), "s")
    assert run_all(tmp_path, left_to_others=("cuda:1",)) == [anywhere]
    assert run_all(tmp_path, left_to_others=("cuda:0",)) == [second]
