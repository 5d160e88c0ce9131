"""Ray loses a worker and a node, both killed outright, and the table is that of one process. `make ray`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.results.store import ResultStore
from kvlab.sweep.on_ray import run_ray
from kvlab.sweep.shards import measured_names, sweep_rows
from kvlab.sweep.status import read_status
from tests.sweep.conftest import asked, planned, untimed

ASKED = os.environ.get("KVLAB_RAY") == "1"
pytestmark = pytest.mark.skipif(not ASKED, reason="two minutes, and needs the extra `ray`: make ray")


def holders(folder: Path) -> list[int]:
    """Processes that have a shard now."""
    found = []
    for path in (folder / "sweep" / "leases").glob("[!.]*"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(json.loads(path.read_text())["pid"]))
    return found


def wait_for(what: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_actor_and_a_killed_node_cost_no_row(
    tiny_folder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'kvlab[ray]'")
    request = asked(tiny_folder, samples=48, lengths="400")
    plan = planned(folder, request, block=2)
    serial = evaluate(request, tmp_path / "serial").rows
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    killed: list[str] = []

    def kill() -> None:
        wait_for(lambda: len(measured_names(folder)) >= 3 and holders(folder))
        os.kill(pid := holders(folder)[0], signal.SIGKILL)
        killed.append(f"actor {pid}")
        seen, count = len(measured_names(folder)), len(read_status(folder).workers)
        wait_for(lambda: len(measured_names(folder)) >= seen + 6 and len(read_status(folder).workers) > count)
        cluster.remove_node(nodes[0], allow_graceful=False)
        killed.append(f"a raylet, with {len(measured_names(folder))} of {len(plan.shards)} shards there")

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    began, said = time.monotonic(), []
    try:
        run_ray(folder, None, cluster.address, said.append, 10)
    finally:
        cluster.shutdown()
    thread.join(5)
    rows, now = sweep_rows(folder), read_status(folder)
    assert len(killed) == 2, killed
    pd.testing.assert_frame_equal(untimed(rows), untimed(serial), check_exact=True)
    assert sum(len(table) for table in ResultStore(folder)._tables(["key"])) == len(rows)
    assert now.measured == len(plan.shards) and now.lost >= 2 and re.search(r"[1-9] lost", " ".join(said))
    pids = [worker.pid for worker in now.workers]
    print(f"\n{len(rows)} of {len(serial)} rows, each once; killed {killed}; workers {pids}, {now.lost} lost; "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
