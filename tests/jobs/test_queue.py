"""The queue: who comes next, what cancel does, what a job's status says. No worker process here."""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import queue_db, worker
from kvlab.jobs.work import read_request
from kvlab.requests.compare import CompareRequest, Progress, RestoreRequest
from tests.jobs.by_hand import STAND_IN, work_off

sys.path.insert(0, str(Path(__file__).parent))  # so that the worker finds the stand-in by name


def ask(prompt: str, *methods: str) -> CompareRequest:
    return CompareRequest(prompt=prompt, choices=tuple(MethodChoice(method=m) for m in methods or ("h2o",)))


@settings(max_examples=12, deadline=None)
@given(sessions=st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_sessions_take_turns_and_keep_their_own_order(tmp_path_factory: pytest.TempPathFactory, sessions: list[str]):
    root = tmp_path_factory.mktemp("queue")
    owner = {jobs.submit(root, ask("x"), session): session for session in sessions}
    positions = {job_id: jobs.status(root, job_id).position for job_id in owner}
    assert sorted(positions.values()) == list(range(1, len(owner) + 1))
    ran: list[str] = []
    with queue_db.database(root) as connection:
        while (job := queue_db.claim(connection, 1)) is not None:
            ran.append(job["job_id"])
            queue_db.finish(connection, job["job_id"], "complete")
    assert sorted(ran, key=positions.__getitem__) == ran, "the positions shown at first are the order they run in"
    for session in set(sessions):
        mine = [job for job in owner if owner[job] == session]
        assert [job for job in ran if owner[job] == session] == mine
        for turn, job in enumerate(mine):
            # before my n-th job, no other session has run more than n + 1 jobs
            before = [owner[other] for other in ran[: ran.index(job)]]
            assert all(before.count(other) <= turn + 1 for other in set(sessions) - {session})


def test_a_finished_job_names_its_runs_and_its_log_holds_what_it_printed(tmp_path: Path):
    job = jobs.submit(tmp_path, ask("print", "h2o", "keepkv"))
    assert jobs.status(tmp_path, job).state == "queued"
    work_off(tmp_path, STAND_IN)
    done = jobs.status(tmp_path, job, log_lines=50)
    assert (done.state, done.ended, done.position, len(done.run_ids)) == ("complete", True, None, 2)
    assert all((tmp_path / run / "run.json").exists() for run in done.run_ids)
    assert done.progress is not None
    assert done.progress.done == done.progress.total == 2
    assert "written by a C library" in done.log
    assert "step 2" in done.log, "a redrawn line appears as it was drawn last"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("user error", "There is no model nowhere: name one that exists."), ("crash", "RuntimeError: CUDA out of memory")],
)
def test_a_job_that_raises_fails_with_its_sentence_and_keeps_its_runs(tmp_path: Path, prompt: str, expected: str):
    job, following = jobs.submit(tmp_path, ask(prompt)), jobs.submit(tmp_path, ask("fine"))
    work_off(tmp_path, STAND_IN, 2)
    failed = jobs.status(tmp_path, job, log_lines=50)
    assert failed.state == "failed"
    assert failed.message.startswith(expected)
    assert len(failed.run_ids) == 1
    assert any("CUDA out of memory" in line for line in failed.log) == (prompt == "crash")
    assert jobs.status(tmp_path, following).state == "complete"


def test_a_waiting_job_can_be_cancelled_and_an_ended_one_stays_as_it_is(tmp_path: Path):
    first, second = jobs.submit(tmp_path, ask("a")), jobs.submit(tmp_path, ask("b"))
    jobs.cancel(tmp_path, first)
    assert jobs.status(tmp_path, first).state == "cancelled"
    assert jobs.status(tmp_path, second).position == 1
    work_off(tmp_path, STAND_IN)
    jobs.cancel(tmp_path, second)
    assert jobs.status(tmp_path, second).state == "complete"


def test_two_clients_see_the_same_queue(tmp_path: Path):
    ids: list[str] = []
    clients = [
        threading.Thread(target=lambda name=name: ids.extend(jobs.submit(tmp_path, ask("x"), name) for _ in range(5)))
        for name in ("one", "two", "three")
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(set(ids)) == 15
    assert {job.job_id for job in jobs.list_jobs(tmp_path, open_only=True)} == set(ids)
    assert sorted(job.position or 0 for job in jobs.list_jobs(tmp_path)) == list(range(1, 16))


def test_the_request_comes_back_as_it_was_asked(tmp_path: Path):
    request = ask("<script>alert(1)</script> é 漢", "h2o", "keepkv")
    assert jobs.request_of(tmp_path, jobs.submit(tmp_path, request)) == request


def test_an_unknown_job_is_one_sentence(tmp_path: Path):
    for call in (jobs.status, jobs.cancel, jobs.request_of):
        with pytest.raises(UserError, match="There is no job nope"):
            call(tmp_path, "nope")


def test_a_fresh_queue_waits_for_who_opened_it_first(tmp_path: Path):
    # What made a server and its command meet: the file is new, and another connection writes to it.
    (tmp_path / queue_db.FOLDER).mkdir()
    file = tmp_path / queue_db.FOLDER / "queue.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as first:
        first.execute("CREATE TABLE other (number)")
        first.execute("BEGIN IMMEDIATE")
        first.execute("INSERT INTO other VALUES (1)")
        ending = threading.Timer(0.2, first.execute, ["COMMIT"])
        ending.start()
        job = jobs.submit(tmp_path, ask("x"))
        ending.join()
    assert jobs.status(tmp_path, job).state == "queued"


def test_a_wrong_statement_is_not_taken_for_a_full_disk_and_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(sqlite3.OperationalError, match="syntax error"), queue_db.database(tmp_path) as connection:
        connection.execute("SELECT FROM")
    with pytest.raises(OSError, match="own"), queue_db.database(tmp_path):
        raise OSError("the caller's own")
    # SQLite's own small disk: no page more than the file has.
    monkeypatch.setattr(queue_db, "write_ahead", lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(UserError, match="is the disk full"):
        jobs.submit(tmp_path, ask("x" * 10_000))


def test_a_damaged_queue_is_one_sentence(tmp_path: Path):
    (tmp_path / ".jobs").mkdir()
    (tmp_path / ".jobs" / "queue.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(UserError, match="damaged: delete it"):
        jobs.list_jobs(tmp_path)


def test_restoring_an_answer_is_a_job_of_its_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[RestoreRequest] = []

    def restore(request, root, *, progress, cancelled) -> Path:
        assert root == tmp_path and not cancelled()
        progress(Progress(stage="tokens: rerun 7 of at most 40, at most 12 s left", done=6, total=40))
        asked.append(request)
        return root

    monkeypatch.setattr(worker, "load_function", lambda name: {worker.RESTORE: restore}[name])
    request = RestoreRequest(run_id="some-run", title="Restore the answer: h2o 20 %")
    job = jobs.submit(tmp_path, request)
    work_off(tmp_path, STAND_IN)
    status = jobs.status(tmp_path, job)
    assert (status.state, status.title, asked) == ("complete", request.title, [request])
    assert status.progress is not None and status.progress.stage.startswith("tokens: rerun 7 of at most 40")
    assert jobs.request_of(tmp_path, job) == request
    assert read_request(request.model_dump_json().replace('"restore"', '"rescue"')) == request, "of an older queue"
