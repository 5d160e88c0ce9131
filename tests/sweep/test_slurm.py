"""A real Slurm, a worker killed outright, another pre-empted: the table is that of one process. `make slurm`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.store import ResultStore
from kvlab.sweep.shards import sweep_rows, there
from kvlab.sweep.slurm import run_slurm
from kvlab.sweep.state import state
from tests.sweep.conftest import asked, planned, untimed
from tests.sweep.one_node_slurm import one_node_slurm
from tests.sweep.test_ray import holders, wait_for

ASKED = os.environ.get("KVLAB_SLURM") == "1"
pytestmark = [
    pytest.mark.skipif(not ASKED, reason="minutes, and needs the extra `sweep` and Debian's packages: make slurm"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="unpacks Debian's packages with apt-get"),
]


def test_a_killed_and_a_preempted_task_cost_no_row(
    tiny_folder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'kvlab[sweep]'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    request = asked(tiny_folder, samples=16, lengths="400")
    plan = planned(folder, request, block=2)
    serial = evaluate(request, tmp_path / "serial").rows
    said: list[str] = []
    done: list[str] = []

    def disturb() -> None:
        wait_for(lambda: len(there(folder)) >= 2 and len(holders(folder)) == 2)
        os.kill(pid := holders(folder)[0], signal.SIGKILL)
        done.append(f"killed {pid}")
        job = next(line.split()[2].strip(":") for line in said if line.startswith("Slurm job"))
        wait_for(lambda: len(running(job)) == 1)
        task = running(job)[0]
        for name in ("TERM", "USR2"):  # what Slurm sends before a pre-emption, and submitit's own
            subprocess.run(["scancel", task, "--signal", name], check=True)
        done.append(f"pre-empted {task} with {len(there(folder))} of {len(plan.shards)} shards there")

    thread = threading.Thread(target=disturb, daemon=True)
    began = time.monotonic()
    with one_node_slurm(Path(os.environ.get("KVLAB_SLURM_FOLDER", tmp_path / "slurm"))):
        thread.start()
        options = {"time": 30, "cpus_per_task": 1, "mem": "2G"}
        run_slurm(folder, 2, options, said.append, 10)
    thread.join(5)
    rows, now = sweep_rows(folder), state(folder)
    assert len(done) == 2, done
    pd.testing.assert_frame_equal(untimed(rows), untimed(serial), check_exact=True)
    assert sum(len(table) for table in ResultStore(folder)._tables(["key"])) == len(rows)
    assert now.there == len(plan.shards) and now.lost == 1
    pids = [worker.pid for worker in now.workers]
    print(f"\n{len(rows)} of {len(serial)} rows, each once; {done}; workers {pids}, {now.lost} lost; "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip


def running(job: str) -> list[str]:
    found = subprocess.run(["squeue", "-h", "-r", "-j", job, "-t", "R", "-o", "%i"], capture_output=True, text=True)
    return found.stdout.split()
