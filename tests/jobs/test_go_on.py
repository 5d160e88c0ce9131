"""A comparison whose worker was killed goes on from what it saved, and equals one that was not killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from kvlab import jobs
from kvlab.cli import commands
from kvlab.common.lab import ALONE, User, set_current_user
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import device_shares as worker_slots
from kvlab.requests.compare import CompareRequest
from kvlab.trace import catalogue as pending_requests
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_runs
from kvlab.trace.schema import TABLES
from tests.jobs.by_hand import work_off

HERE = Path(__file__).parent
CHOICES = (MethodChoice(method="h2o", budget=12), MethodChoice(method="zsmerge", budget=12))
ASKED = CompareRequest(prompt="The cat sat on the mat and the dog ran after it.", choices=CHOICES, max_new_tokens=4)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a comparison whose worker was killed in its second run."""
    root = tmp_path_factory.mktemp("killed")
    job = jobs.submit(root, ASKED)
    command = [sys.executable, "-m", "kvlab.jobs.worker", "--nice", "0", "--runs", str(root), "--compare"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "stand_in:killed_in_the_second"], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    return root, job


def same(one: Path, other: Path) -> None:
    """Both runs recorded the same, but for rounding: other rows of the batch ran beside them."""
    first, second = open_run(one), open_run(other)
    assert first.problems == second.problems == []
    for table in TABLES:
        pd.testing.assert_frame_equal(first.select(table), second.select(table), rtol=1e-3, atol=1e-5)
    arrays = sorted(file.name for file in (one / "arrays").glob("*"))
    assert arrays and arrays == sorted(file.name for file in (other / "arrays").glob("*"))
    for name in arrays:
        ours, theirs = load_file(one / "arrays" / name), load_file(other / "arrays" / name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=2e-3, atol=1e-3)


def test_one_click_goes_on_and_makes_the_missing_runs_only(killed: tuple[Path, str], tmp_path: Path):
    root, job = killed
    ended = jobs.status(root, job)
    assert (ended.state, ended.message) == ("failed", worker_slots.KILLED)
    before = {run.run_id: run.status for run in list_runs(root)}
    assert sorted(before.values()) == ["complete", "failed", "failed"]
    kept = next(name for name, status in before.items() if status == "complete")
    written = {file: file.stat().st_mtime_ns for file in (root / kept).rglob("part*.parquet")}
    assert written

    set_current_user(lambda: User("ben"))
    try:
        with pytest.raises(UserError, match="It belongs to nobody here: only in a terminal"):
            jobs.resume(root, job)
    finally:
        set_current_user(lambda: ALONE)
    jobs.resume(root, job)
    work_off(root)
    assert jobs.status(root, job).state == "complete"
    assert {file: file.stat().st_mtime_ns for file in written} == written, "the finished run was not made again"
    made = [run.run_id for run in list_runs(root, comparison_id=job)]
    assert [name.rsplit("-", 2)[1] for name in sorted(made)] == ["00", "01", "02"]

    whole = jobs.submit(tmp_path, ASKED)
    work_off(tmp_path)
    for name in made:
        same(root / name, tmp_path / name.replace(job, whole))
    assert list(pending_requests.equal_requests(root, ASKED)) == []
    assert not (root / pending_requests.FOLDER).exists()


def test_the_command_line_goes_on_with_what_was_interrupted(tmp_path: Path):
    from kvlab.engine import compare

    stages: list[str] = []
    cancelled = lambda: any(stage.startswith("decoding") for stage in stages)  # noqa: E731
    compare(ASKED, tmp_path, comparison_id="mine", progress=lambda p: stages.append(p.stage), cancelled=cancelled)
    assert list(pending_requests.equal_requests(tmp_path, ASKED)) == ["mine"]
    done = CliRunner().invoke(commands, ["compare", "--resume", "mine", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert [run.status for run in list_runs(tmp_path, comparison_id="mine")] == ["complete"] * 3
    with pytest.raises(UserError, match="There is no unfinished comparison or batch 'mine'"):
        CliRunner().invoke(commands, ["compare", "--resume", "mine", "--out", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(UserError, match="belongs to a different request"):
        compare(ASKED.model_copy(update={"prompt": "Else."}), tmp_path, comparison_id="mine", resume=True)
