"""Actions of live sessions run between the steps of another job, and change nothing of what it records."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvlab import jobs
from kvlab.common.limits import is_under_way
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db, worker
from kvlab.jobs.device_shares import WorkerSlot
from kvlab.jobs.worker import UNRECORDED, answer_waiting
from kvlab.live import job as live
from kvlab.requests.compare import CompareRequest, Progress
from kvlab.requests.live_session import LiveJob, LiveRequest
from kvlab.trace import open_run

CONTEXT = "The old house stood on the hill. Nobody had lived in it for years. " * 6
REQUEST = LiveRequest(context=CONTEXT, choices=(MethodChoice(method="keepkv", budget=0.3),))


def test_a_live_action_does_not_wait_for_the_end_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_job = jobs.submit(tmp_path, CompareRequest(prompt="slow", choices=REQUEST.choices, title="slow"), "one")
    asked: list[str] = []
    stop = threading.Event()

    def cancel_the_other(job: LiveJob, root: Path, **_: object) -> None:
        assert jobs.status(root, slow_job).state == "running"
        jobs.cancel(root, slow_job)

    def ask_while_it_runs(request: CompareRequest, root: Path, **told: Any) -> None:
        asked.append(jobs.submit(root, LiveJob(session="s", action="start", request=REQUEST), "two"))
        slow(request, root, **told)
        stop.set()

    loaded = {worker.LIVE: cancel_the_other, "stand-in": ask_while_it_runs}
    monkeypatch.setattr(worker, "load_function", loaded.__getitem__)
    worker.serve(tmp_path, "stand-in", stop)
    assert (jobs.status(tmp_path, asked[0]).state, jobs.status(tmp_path, asked[0]).message) == ("complete", "")
    assert jobs.status(tmp_path, slow_job).state == "cancelled"


def test_several_people_are_answered_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.jobs.job_reporter.REPORT_SECONDS", 0)
    steps: list[str] = []

    def answer(job: LiveJob, root: Path, *, cancelled: Callable[[], bool], **_: object) -> None:
        if job.question == "fails":
            raise UserError("No such branch.")
        for _step in range(5):
            steps.append(job.session)
            assert not cancelled()

    submitted = [
        jobs.submit(tmp_path, LiveJob(session=name, action="ask", question=question, request=REQUEST), name)
        for name, question in (("one", "a"), ("two", "b"), ("three", "fails"), ("four", "c"))
    ]
    with queue_db.database(tmp_path) as connection:
        assert worker_slots.take_slot(connection, os.getpid(), 1, "")

    def slowly(*given: Any, **told: Any) -> None:
        time.sleep(0.3)  # or the first ends before the last is claimed
        answer(*given, **told)

    assert answer_waiting(tmp_path, threading.Event(), WorkerSlot(), slowly)
    assert sorted(steps[:3]) == ["four", "one", "two"], "each has its turn"
    assert steps[:3] * 5 == steps
    states = [(jobs.status(tmp_path, job).state, jobs.status(tmp_path, job).message) for job in submitted]
    assert states == [("complete", ""), ("complete", ""), ("failed", "No such branch."), ("complete", "")]
    assert not answer_waiting(tmp_path, threading.Event(), WorkerSlot(), slowly)


def test_actions_of_one_session_follow_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two tabs ask: the second question meets the state after the first answer."""
    monkeypatch.setattr("kvlab.jobs.job_reporter.REPORT_SECONDS", 0)
    steps: list[str] = []

    def answer(job: LiveJob, root: Path, *, cancelled: Callable[[], bool], **_: object) -> None:
        for _step in range(4):
            steps.append(job.question)
            time.sleep(0.05)
            assert not cancelled()

    for number, question in enumerate("abc"):
        jobs.submit(tmp_path, LiveJob(session="one", action="ask", question=question, request=REQUEST), f"tab {number}")
    with queue_db.database(tmp_path) as connection:
        assert worker_slots.take_slot(connection, os.getpid(), 1, "")
    assert answer_waiting(tmp_path, threading.Event(), WorkerSlot(), answer)
    assert "".join(steps) == "aaaabbbbcccc"


def test_an_action_that_cannot_record_how_it_ended_is_marked_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.submit(tmp_path, LiveJob(session="one", action="start", request=REQUEST))
    with queue_db.database(tmp_path) as connection:
        assert worker_slots.take_slot(connection, os.getpid(), 1, "")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("kvlab.jobs.queue_db.log_path", lambda *_: tmp_path / "missing" / "log")
    assert answer_waiting(tmp_path, threading.Event(), WorkerSlot(), lambda *_, **__: None)
    monkeypatch.undo()
    assert (jobs.status(tmp_path, job).state, jobs.status(tmp_path, job).message) == ("failed", UNRECORDED)


def slow(request: CompareRequest, root: Path, *, cancelled: Callable[[], bool], **_: object) -> None:
    """Stand-in for a comparison that only ends when it is cancelled."""
    for _step in range(200):
        if cancelled():
            return
        threading.Event().wait(0.05)
    raise AssertionError("nobody cancelled it")


def test_live_actions_and_other_jobs_are_claimed_apart(tmp_path: Path) -> None:
    later = jobs.submit(tmp_path, CompareRequest(prompt="later", choices=REQUEST.choices), "one")
    with queue_db.database(tmp_path) as connection:
        assert queue_db.claim(connection, os.getpid(), live=True) is None
        asked = jobs.submit(tmp_path, LiveJob(session="s", action="start", request=REQUEST), "one")
        claimed = [queue_db.claim(connection, os.getpid(), live=live) for live in (True, True, False, False)]
    assert [None if row is None else row["job_id"] for row in claimed] == [asked, None, later, None]


def test_a_conversation_in_between_changes_nothing_of_a_comparison(tmp_path: Path) -> None:
    choices = tuple(MethodChoice(method=name, budget=0.2) for name in ("h2o", "keepkv"))
    request = CompareRequest(prompt=CONTEXT, max_new_tokens=8, choices=choices)

    def talk(progress: Progress) -> None:
        if is_under_way():  # where the worker waits as well
            return
        talks.append(progress.stage)
        action = "start" if len(talks) == 1 else "ask"
        fields = {"session": "one", "action": action, "question": "Who?", "max_new_tokens": 2}
        job = LiveJob.model_validate({"request": REQUEST, **fields})
        live.run_live(job, tmp_path, progress=lambda _: None, cancelled=lambda: False)

    talks: list[str] = []
    alone, between = (
        compare(request, tmp_path / name, progress=progress) for name, progress in (("a", None), ("b", talk))
    )
    assert len(talks) > 8
    for first, second in zip(alone, between, strict=True):
        one, other = open_run(first), open_run(second)
        assert one.tokens.equals(other.tokens)
        assert one.events.equals(other.events)
        assert len(one.events) > 0 or one.record.method == "full"
