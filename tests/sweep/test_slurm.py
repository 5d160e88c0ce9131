"""A real Slurm, a worker killed outright, another pre-empted: the table is that of one process. `make slurm`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.results.store import ResultStore
from kvlab.sweep.shards import measured_names, sweep_rows
from kvlab.sweep.slurm import run_slurm
from kvlab.sweep.status import read_status
from tests.sweep.conftest import asked, planned, untimed
from tests.sweep.one_node_slurm import Node, one_node_slurm
from tests.sweep.test_ray import holders, wait_for

ASKED = os.environ.get("KVLAB_SLURM") == "1"
pytestmark = [
    pytest.mark.skipif(not ASKED, reason="minutes, and needs the extra `sweep` and Debian's packages: make slurm"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="unpacks Debian's packages with apt-get"),
]


@dataclass
class Sweep:
    """A sweep that two tasks will do, and the table that one process made of it."""

    folder: Path
    shards: int
    serial: pd.DataFrame
    slurm: Path
    said: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def run(self, disturb: Callable[[Node], None]) -> None:
        """Do it while `disturb` disturbs it, and hold the table against the serial one."""
        began = time.monotonic()
        with one_node_slurm(self.slurm) as node:
            thread = threading.Thread(target=disturb, args=(node,), daemon=True)
            thread.start()
            run_slurm(self.folder, 2, {"time": 30, "cpus_per_task": 1, "mem": "2G"}, self.said.append, 10)
        thread.join(5)
        rows, now = sweep_rows(self.folder), read_status(self.folder)
        assert len(self.done) == 2, self.done
        pd.testing.assert_frame_equal(untimed(rows), untimed(self.serial), check_exact=True)
        assert sum(len(table) for table in ResultStore(self.folder)._tables(["key"])) == len(rows)
        assert now.measured == self.shards
        pids = [worker.pid for worker in now.workers]
        print(f"\n{len(rows)} of {len(self.serial)} rows, each once; {self.done}; workers {pids}, {now.lost} lost; "
              f"{time.monotonic() - began:.0f} s")  # fmt: skip


@pytest.fixture
def sweep(tiny_folder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'kvlab[sweep]'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    request = asked(tiny_folder, samples=16, lengths="400")
    plan = planned(folder, request, block=2)
    serial = evaluate(request, tmp_path / "serial").rows
    slurm = Path(os.environ.get("KVLAB_SLURM_FOLDER", tmp_path / "slurm"))
    return Sweep(folder, len(plan.shards), serial, slurm)


def test_a_killed_and_a_preempted_task_cost_no_row(sweep: Sweep) -> None:
    def disturb(_: Node) -> None:
        under_way(sweep.folder)
        os.kill(pid := holders(sweep.folder)[0], signal.SIGKILL)
        sweep.done.append(f"killed {pid}")
        job = next(line.split()[2].strip(":") for line in sweep.said if line.startswith("Slurm job"))
        wait_for(lambda: len(running(job)) == 1)
        task = running(job)[0]
        for name in ("TERM", "USR2"):  # what Slurm sends before a pre-emption, and submitit's own
            subprocess.run(["scancel", task, "--signal", name], check=True)
        sweep.done.append(f"pre-empted {task} with {len(measured_names(sweep.folder))} of {sweep.shards} shards there")

    sweep.run(disturb)
    assert read_status(sweep.folder).lost == 1


def test_a_dead_node_costs_no_row(sweep: Sweep) -> None:
    def disturb(node: Node) -> None:
        under_way(sweep.folder)
        pids = node.die()
        sweep.done.append(
            f"killed the node ({len(pids)} processes) with {len(measured_names(sweep.folder))} shards there"
        )
        time.sleep(3)
        node.come_back()
        sweep.done.append("the node is back")

    sweep.run(disturb)
    assert read_status(sweep.folder).lost == 2


def under_way(folder: Path) -> None:
    """Wait until both tasks are at work."""
    wait_for(lambda: len(measured_names(folder)) >= 2 and len(holders(folder)) == 2)


def running(job: str) -> list[str]:
    found = subprocess.run(["squeue", "-h", "-r", "-j", job, "-t", "R", "-o", "%i"], capture_output=True, text=True)
    return found.stdout.split()
