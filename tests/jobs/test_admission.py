"""What is refused before it is queued: in one sentence, with what is used and what is allowed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from kvlab import jobs
from kvlab.cli.options.plan_check import check_fits
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import access_check, disk_usage, job_reporter, queue_db, size_check, worker
from kvlab.planning import Machine
from kvlab.requests.compare import MOST_RUNS, CompareRequest
from kvlab.server import quotas
from kvlab.server.quotas import DiskUsage, Limits, limits_of
from kvlab.server.settings import VARIABLE
from kvlab.server.users import ALONE, Role, User, set_current_user
from kvlab.trace import open_run
from kvlab.trace.catalogue import rebuild
from kvlab.trace.record import read_record, write_record
from kvlab.trace.thinning import arrays_bytes
from tests.jobs.by_hand import STAND_IN, work_off
from tests.synthetic.runs import write_synthetic_run

sys.path.insert(0, str(Path(__file__).parent))  # so that the worker finds the stand-in by name


def ask(runs: int = 1) -> CompareRequest:
    return CompareRequest(
        prompt="the river rose", choices=tuple(MethodChoice(method="h2o", budget=n + 1) for n in range(runs))
    )


@pytest.fixture
def ann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lab with limits, and ann, who asks; returns its file."""
    file = tmp_path / "lab.toml"
    file.write_text('[people]\nway = "proxy"\n')
    monkeypatch.setenv(VARIABLE, str(file))
    set_current_user(lambda: User("ann", Role.RUN))
    yield file
    set_current_user(lambda: ALONE)


def allow(file: Path, *lines: str) -> None:
    file.write_text("\n".join(['[people]\nway = "proxy"', *lines]))


def test_80_002_runs_are_refused_where_nothing_else_is_limited(tmp_path: Path):
    with pytest.raises(ValidationError, match="80,002 runs were asked for: ask for at most 1,000"):
        ask(80_002)
    repeated = ask(2).model_copy(update={"repeats": (None,) * MOST_RUNS})
    with pytest.raises(UserError, match="asks for 3,000 runs, and 1,000 a request are allowed"):
        jobs.submit(tmp_path, repeated)
    assert jobs.list_jobs(tmp_path) == []
    assert limits_of("") == Limits()


def test_jobs_that_wait_and_run_are_counted_of_each_person(tmp_path: Path, ann: Path):
    allow(ann, "[limits]", "queued = 2", "[limits.people.ben]", "queued = 3")
    held = [jobs.submit(tmp_path, ask()) for _ in range(2)]
    with pytest.raises(UserError, match="You have 2 jobs waiting or running, and 2 are allowed"):
        jobs.submit(tmp_path, ask())
    set_current_user(lambda: User("ben", Role.RUN))
    for _ in range(3):
        jobs.submit(tmp_path, ask())
    with pytest.raises(UserError, match="and 3 are allowed"):
        jobs.submit(tmp_path, ask())
    set_current_user(lambda: User("ann", Role.RUN))
    jobs.cancel(tmp_path, held[0])
    jobs.submit(tmp_path, ask())


def test_tokens_are_counted_over_all_runs(tmp_path: Path, ann: Path):
    # mini reads bytes: 14 letters; 64 new tokens; two choices and the full cache.
    tokens = access_check.tokens_of(ask(2))
    assert tokens is not None and tokens % 3 == 0 and 64 < tokens // 3 <= 64 + 16
    allow(ann, "[limits]", f"tokens = {tokens - 1}")
    with pytest.raises(UserError, match=f"about {tokens} tokens over all its runs, and {tokens - 1} a request"):
        jobs.submit(tmp_path, ask(2))
    allow(ann, "[limits]", f"tokens = {tokens}")
    jobs.submit(tmp_path, ask(2))


def test_minutes_of_the_last_day_count_and_older_ones_do_not(tmp_path: Path, ann: Path):
    jobs.submit(tmp_path, ask())
    now = time.time()
    with queue_db.database(tmp_path) as connection:
        for began, ended in ((now - 30 * 3600, now - 23 * 3600), (now - 600, now - 300)):
            connection.execute(
                "INSERT INTO jobs (job_id, session, owner, title, request, state, created, started, finished) "
                "VALUES (?, '', 'ann', '', '{}', 'complete', 0, ?, ?)",
                (str(began), began, ended),
            )
        # an hour of the first still lies within a day, and the second took five minutes
        assert access_check.minutes_used(connection, "ann", now) == pytest.approx(65)
        assert access_check.minutes_used(connection, "ben", now) == 0
    allow(ann, "[limits]", "minutes = 64.9")
    with pytest.raises(
        UserError, match=r"You have used 65 minutes of compute in the last 24 hours, and 64.9 are allowed"
    ):
        jobs.submit(tmp_path, ask())
    allow(ann, "[limits]", "minutes = 66")
    jobs.submit(tmp_path, ask())


def test_disk_counts_what_a_persons_jobs_made(tmp_path: Path, ann: Path):
    mine = jobs.submit(tmp_path, ask())
    run = write_synthetic_run(tmp_path, comparison_id=mine, prompt_tokens=16, steps=2)
    write_synthetic_run(tmp_path, comparison_id="of-the-terminal", prompt_tokens=16, steps=2)
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    with queue_db.database(tmp_path) as connection:
        assert disk_usage.bytes_by_owner(connection, tmp_path)["ann"] == size
    allow(ann, "[limits]", f"disk = {size}")
    with pytest.raises(UserError, match=r"Your results take .* of disk, and .* are allowed"):
        jobs.submit(tmp_path, ask())
    allow(ann, "[limits]", f"disk = {size + 1}")
    jobs.submit(tmp_path, ask())


def test_a_full_folder_takes_no_job_and_a_nearly_full_one_says_so(
    tmp_path: Path, ann: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk_usage, "SECONDS_KNOWN", 0.0)
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "rows").write_bytes(b"x" * 1_000_000)
    size = disk_usage.folder_bytes(tmp_path)
    assert 1_000_000 <= size < 1_100_000
    allow(ann, "[disk]", f"limit = {2 * size}")
    assert disk_usage.folder_usage(tmp_path).warning == ""
    allow(ann, "[disk]", 'limit = "1.1MB"')
    assert disk_usage.folder_usage(tmp_path).warning.startswith("The folder of runs takes 977 KiB of at most 1.05 MiB")
    jobs.submit(tmp_path, ask())
    allow(ann, "[disk]", 'limit = "1MB"')
    with pytest.raises(UserError, match=r"Nothing more is run here: the folder of runs takes .* its limit is 977 KiB"):
        jobs.submit(tmp_path, ask())


def test_a_disk_that_is_nearly_full_is_said_without_any_limit():
    rules = quotas.DiskRules()
    assert DiskUsage(used=0, free=100 * 10**9, total=10**12, rules=rules).warning == ""
    assert "The disk has 858 MiB left" in DiskUsage(used=0, free=900 * 10**6, total=10**12, rules=rules).warning
    assert "Nothing more is run here" in DiskUsage(used=0, free=400 * 10**6, total=10**12, rules=rules).warning
    assert DiskUsage(used=0, free=400 * 10**6, total=10**9, rules=rules).warning == "", "a small disk keeps a twentieth"


@pytest.mark.parametrize("line", ["[limits]\nqueued = 0", "[limits]\njobs = 3", '[disk]\nlimit = "much"'])
def test_a_limit_that_cannot_be_is_one_sentence(tmp_path: Path, ann: Path, line: str):
    allow(ann, line)
    with pytest.raises(UserError, match=r"lab's file, \[(limits|disk)\]|no amount of bytes"):
        jobs.submit(tmp_path, ask())


def room(used: int) -> quotas.DiskUsage:
    return DiskUsage(used=used, free=10**12, total=10**12, rules=quotas.disk_rules())


def test_a_job_stops_cleanly_once_the_folder_is_full_and_can_go_on(
    tmp_path: Path, ann: Path, monkeypatch: pytest.MonkeyPatch
):
    allow(ann, "[disk]", "limit = 1000")
    monkeypatch.setattr(access_check, "folder_usage", lambda root: room(10))
    monkeypatch.setattr(job_reporter, "folder_usage", lambda root: room(1000))  # once it runs
    job = jobs.submit(tmp_path, ask().model_copy(update={"prompt": "slow"}))
    work_off(tmp_path, STAND_IN)
    stopped = jobs.status(tmp_path, job)
    assert stopped.state == "cancelled"
    assert stopped.message.startswith(
        "Stopped: the folder of runs takes 1,000 bytes, and its limit is 1,000 bytes. What was"
    )
    assert open_run(tmp_path / stopped.run_ids[0], strict=True).record.status == "complete"
    monkeypatch.setattr(access_check, "folder_usage", lambda root: room(1000))
    with pytest.raises(UserError, match="Nothing more is run here"):
        jobs.resume(tmp_path, job)
    monkeypatch.setattr(access_check, "folder_usage", lambda root: room(10))
    jobs.resume(tmp_path, job)
    assert jobs.status(tmp_path, job).state == "queued"


def test_the_rule_thins_old_recordings_after_a_job_and_only_as_many_as_are_needed(
    tmp_path: Path, ann: Path, monkeypatch: pytest.MonkeyPatch
):
    old = [write_synthetic_run(tmp_path, comparison_id=name, prompt_tokens=16, steps=2) for name in ("one", "two")]
    for number, path in enumerate(old):  # long ago, the first before the second
        record = read_record(path).model_copy(update={"created": f"2020-01-0{number + 1}T00:00:00+00:00"})
        write_record(path, record)
    rebuild(tmp_path)
    allow(ann, "[disk]", "limit = 1000", 'thin_older_than = "30d"')
    for module in (access_check, worker):  # 50 bytes more than the share from which on it is said
        monkeypatch.setattr(module, "folder_usage", lambda root: room(950))
    jobs.submit(tmp_path, ask())
    work_off(tmp_path, STAND_IN)
    assert [arrays_bytes(path) > 0 for path in old] == [False, True]
    assert read_record(old[0]).thinned and not read_record(old[1]).thinned


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
