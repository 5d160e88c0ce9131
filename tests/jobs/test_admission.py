"""What is refused before it is queued: in one sentence, with what is used and what is allowed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from kvlab import jobs
from kvlab.cli.options.plan_check import check_fits
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import access_check as disk_space
from kvlab.jobs import job_reporter, size_check, worker
from kvlab.planning.plan import Machine
from kvlab.requests.compare import MOST_RUNS, CompareRequest
from kvlab.trace import open_run
from tests.jobs.by_hand import STAND_IN, work_off

sys.path.insert(0, str(Path(__file__).parent))  # so that the worker finds the stand-in by name


def ask(runs: int = 1) -> CompareRequest:
    return CompareRequest(
        prompt="the river rose", choices=tuple(MethodChoice(method="h2o", budget=n + 1) for n in range(runs))
    )


def test_80_002_runs_are_refused_where_nothing_else_is_limited(tmp_path: Path):
    with pytest.raises(ValidationError, match="80,002 runs were asked for: ask for at most 1,000"):
        ask(80_002)
    repeated = ask(2).model_copy(update={"repeats": (None,) * MOST_RUNS})
    with pytest.raises(UserError, match="asks for 3,000 runs, and 1,000 a request are allowed"):
        jobs.submit(tmp_path, repeated)
    assert jobs.list_jobs(tmp_path) == []


def with_free(monkeypatch: pytest.MonkeyPatch, free: int, total: int = 10**12) -> None:
    """Let the disk have so many free bytes."""
    monkeypatch.setattr("shutil.disk_usage", lambda place: shutil._ntuple_diskusage(total, total - free, free))


def test_a_nearly_full_disk_is_a_sentence_and_a_full_one_takes_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with_free(monkeypatch, 100 * 10**9)
    assert disk_space.disk_warning(tmp_path) == ""
    with_free(monkeypatch, 900 * 10**6)
    assert "the disk has 858 MiB left" in disk_space.disk_warning(tmp_path)
    jobs.submit(tmp_path, ask())
    with_free(monkeypatch, 400 * 10**6)
    with pytest.raises(UserError, match="Nothing more is run here: the disk has 381 MiB left"):
        jobs.submit(tmp_path, ask())
    with_free(monkeypatch, 400 * 10**6, total=10**9)
    assert disk_space.disk_warning(tmp_path) == "", "a small disk keeps a twentieth"


def test_a_job_stops_cleanly_once_the_disk_is_full_and_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = "the disk has 1 MiB left of 1 TiB"
    job = jobs.submit(tmp_path, ask().model_copy(update={"prompt": "slow"}))
    monkeypatch.setattr(job_reporter, "full_disk", lambda root: full)  # once it runs
    work_off(tmp_path, STAND_IN)
    stopped = jobs.status(tmp_path, job)
    assert stopped.state == "cancelled" and stopped.message.startswith(f"Stopped: {full}. What was finished is kept")
    assert open_run(tmp_path / stopped.run_ids[0], strict=True).record.status == "complete"
    monkeypatch.setattr(disk_space, "full_disk", lambda root: full)
    with pytest.raises(UserError, match="Nothing more is run here"):
        jobs.resume(tmp_path, job)
    monkeypatch.setattr(disk_space, "full_disk", lambda root: "")
    jobs.resume(tmp_path, job)
    assert jobs.status(tmp_path, job).state == "queued"


def test_what_the_device_cannot_hold_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    verdict = "This needs about 90 GB, and cpu has 1 GB free; the largest part is weights, 80 GB."
    monkeypatch.setattr(worker, "too_big", lambda request: verdict)
    job = jobs.submit(tmp_path, ask())
    work_off(tmp_path)
    refused = jobs.status(tmp_path, job)
    assert (refused.state, refused.message, refused.run_ids) == ("failed", verdict, ())


def test_the_plan_says_what_is_too_big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = CompareRequest(prompt="the river rose " * 40, choices=(MethodChoice(method="h2o"),))
    assert size_check.too_big(asked) == ""
    small = Machine("cpu", "cpu", 1000, 1000)
    monkeypatch.setattr("kvlab.engine.out_of_memory.machine_of", lambda device: small)
    assert size_check.too_big(asked).startswith("This needs about")
    with pytest.raises(UserError, match="add --force"):
        check_fits(asked)
