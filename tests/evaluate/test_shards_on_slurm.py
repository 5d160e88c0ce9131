"""A real Slurm: a task killed outright, one pre-empted, a dead node: the table is that of one process. `make slurm`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from kvlab.evaluate import shards
from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.request import EvalRequest
from tests.evaluate.one_node_slurm import Node, one_node_slurm
from tests.evaluate.test_shards import asked, assert_equal
from tests.evaluate.test_shards_on_ray import NotedTask, processes, wait_for

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("KVLAB_SLURM") != "1",
        reason="minutes, and needs the extra `slurm` and Debian's packages: make slurm",
    ),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="unpacks Debian's packages with apt-get"),
]
OPTIONS = {"time": 30, "cpus_per_task": 1, "mem": "2G", "array_parallelism": 2}


class LongTask(NotedTask):
    """One that outlasts the start of the next."""

    seconds: ClassVar[float] = 20.0


@pytest.fixture
def request_and_rows(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[EvalRequest, pd.DataFrame]:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'kvlab[slurm]'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(shards, "ShardTask", LongTask)
    request = asked(model=str(tiny_folder), samples=16)
    return request, evaluate(request, tmp_path / "serial").rows


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with one_node_slurm(Path(os.environ.get("KVLAB_SLURM_FOLDER", tmp_path / "slurm"))) as node:
        yield node


def states(job: str) -> list[str]:
    found = subprocess.run(["squeue", "-h", "-r", "-j", job, "-o", "%T %i"], capture_output=True, text=True)
    return found.stdout.splitlines()


def test_a_preempted_task_and_a_killed_one_cost_no_row(
    request_and_rows: tuple[EvalRequest, pd.DataFrame], node: Node, tmp_path: Path
) -> None:
    """Slurm takes a pre-empted task up again by itself; one that was killed, the same command."""
    request, serial = request_and_rows
    folder = tmp_path / "eval"
    job = shards.submit_to_slurm(request, folder, 4, OPTIONS)
    wait_for(lambda: len(processes(folder)) == 2 and len(list((folder / "shards").glob("*.parquet"))) == 2)
    task = next(line.split()[1] for line in states(job) if line.startswith("RUNNING"))
    for name in ("TERM", "USR2"):  # what Slurm sends before a pre-emption, and submitit's own
        wait_for(lambda name=name: subprocess.run(["scancel", task, "--signal", name]).returncode == 0, 20)
    wait_for(lambda: len(processes(folder)) == 1)
    os.kill(processes(folder)[0], signal.SIGKILL)
    wait_for(lambda: not states(job), 400)
    job = shards.submit_to_slurm(request, folder, 4, OPTIONS)
    wait_for(lambda: not states(job), 200)
    assert_equal(folder, serial, interrupted=True)


def test_a_dead_node_costs_no_row(
    request_and_rows: tuple[EvalRequest, pd.DataFrame], node: Node, tmp_path: Path
) -> None:
    request, serial = request_and_rows
    folder = tmp_path / "eval"
    job = shards.submit_to_slurm(request, folder, 2, OPTIONS)
    wait_for(lambda: len(processes(folder)) == 2 and list((folder / "shards").glob("*.parquet")))
    assert node.die()
    time.sleep(3)
    node.come_back()
    wait_for(lambda: not any(line.startswith("RUNNING") for line in states(job)), 400)
    subprocess.run(["scancel", job], check=False)  # Slurm holds tasks whose script died with the node
    wait_for(lambda: not states(job), 60)
    job = shards.submit_to_slurm(request, folder, 2, OPTIONS)
    wait_for(lambda: not states(job), 200)
    assert_equal(folder, serial, interrupted=True)
