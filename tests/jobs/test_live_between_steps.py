"""Actions of live sessions run between the steps of another job, and change nothing of what it records."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.common.forward_pass import is_under_way
from kvlab.engine import compare
from kvlab.jobs import queue_db, worker, worker_slots
from kvlab.jobs.worker import WorkerSlot, run_next
from kvlab.live import job as live
from kvlab.requests.compare import CompareRequest, MethodChoice, Progress
from kvlab.requests.live_session import LiveJob, LiveRequest
from kvlab.trace import open_run

CONTEXT = "The old house stood on the hill. Nobody had lived in it for years. " * 6
REQUEST = LiveRequest(context=CONTEXT, choices=(MethodChoice(method="keepkv", budget=0.3),))


def cancel_others(job: LiveJob, root: Path, **_: object) -> None:
    """Stand-in for a live session: cancel every other job, and note which ones run."""
    for other in jobs.list_jobs(root, open_only=True):
        if other.title != job.title:
            assert other.state == "running"
            jobs.cancel(root, other.job_id)


def test_a_live_action_does_not_wait_for_the_end_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LIVE", f"{__name__}:cancel_others")
    monkeypatch.setattr(worker, "load_function", lambda dotted: cancel_others if "cancel" in dotted else slow)
    slow_job = jobs.submit(tmp_path, CompareRequest(prompt="slow", choices=REQUEST.choices, title="slow"), "one")
    asked = jobs.submit(tmp_path, LiveJob(session="s", action="start", request=REQUEST, title="live"), "two")
    with queue_db.database(tmp_path) as connection:
        assert worker_slots.take_slot(connection, os.getpid(), 1, "")
        assert run_next(connection, tmp_path, "stand-in", threading.Event(), WorkerSlot())
        assert not run_next(connection, tmp_path, "stand-in", threading.Event(), WorkerSlot())
    assert (jobs.status(tmp_path, asked).state, jobs.status(tmp_path, asked).message) == ("complete", "")
    assert jobs.status(tmp_path, slow_job).state == "cancelled"


def slow(request: CompareRequest, root: Path, *, cancelled: object, **_: object) -> None:
    """Stand-in for a comparison that only ends when it is cancelled."""
    assert callable(cancelled)
    for _step in range(200):
        if cancelled():
            return
        threading.Event().wait(0.05)
    raise AssertionError("nobody cancelled it")


def test_only_live_jobs_are_claimed_between_steps(tmp_path: Path) -> None:
    jobs.submit(tmp_path, CompareRequest(prompt="later", choices=REQUEST.choices), "one")
    with queue_db.database(tmp_path) as connection:
        assert queue_db.claim(connection, os.getpid(), only=worker.LIVE_KIND) is None
        asked = jobs.submit(tmp_path, LiveJob(session="s", action="start", request=REQUEST), "one")
        claimed = queue_db.claim(connection, os.getpid(), only=worker.LIVE_KIND)
        assert claimed is not None
        assert claimed["job_id"] == asked


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
