"""Ray loses a task's process and a node, both killed outright, and the table is that of one process. `make ray`."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation import shards
from kvlab.evaluation.harness import EvalResult, evaluate
from kvlab.evaluation.plan import Shard
from kvlab.evaluation.request import EvalRequest
from kvlab.evaluation.shards import measure_part
from tests.evaluation.test_shards import asked, assert_equal

pytestmark = pytest.mark.skipif(
    os.environ.get("KVLAB_RAY") != "1", reason="two minutes, and needs the extra `ray`: make ray"
)


def processes(folder: Path) -> list[int]:
    """Processes at work on a part, as they note themselves in the folder."""
    return [int(path.name) for path in folder.glob("[0-9]*") if Path(f"/proc/{path.name}").exists()]


def noted_part(request: EvalRequest, out: Path, directory: Path, shard: Shard) -> EvalResult:
    """`measure_part`, which notes its process, writes every row at once and takes half a second longer."""
    from kvlab.evaluation.results import rows

    rows.FLUSH_SECONDS = 0.0
    note = out / str(os.getpid())
    out.mkdir(parents=True, exist_ok=True)
    note.touch()
    result = measure_part(request, out, directory, shard)
    time.sleep(0.5)
    note.unlink()
    return result


def wait_for(what: Callable[[], object], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_a_killed_task_and_a_killed_node_cost_no_row(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "measure_part", noted_part)
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'kvlab[ray]'")
    request, folder = asked(model=str(tiny_folder), samples=16), tmp_path / "eval"
    serial = evaluate(request, tmp_path / "serial").rows
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    killed: list[str] = []
    lines: list[str] = []

    def files() -> int:
        return len(list((folder / "shards").glob("*.parquet")))

    def kill() -> None:
        wait_for(lambda: files() >= 2 and processes(folder))
        os.kill(pid := processes(folder)[0], signal.SIGKILL)
        killed.append(f"process {pid}")
        now = files()
        wait_for(lambda: files() >= now + 2)
        cluster.remove_node(nodes[0], allow_graceful=False)
        killed.append(f"a node, with {len(lines)} parts measured")

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    began = time.monotonic()
    try:
        rows = shards.measure_on_ray(request, folder, 8, {"address": cluster.address}, lines.append).rows
    finally:
        cluster.shutdown()
    thread.join(5)
    assert len(killed) == 2, killed
    assert sorted(lines) == [f"Part {number}/8 is measured." for number in range(1, 9)]
    assert set(rows["key"]) == set(serial["key"]) and rows["key"].is_unique
    assert_equal(folder, serial, interrupted=True)
    print(f"\n{len(rows)} rows, each once; killed {killed}; {time.monotonic() - began:.0f} s")


def test_a_part_that_fails_is_named_after_the_others(tiny_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvlab[ray]'")
    request, lines = asked(model=str(tiny_folder), tasks="needle"), []
    (tmp_path / "eval").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"2 of 2 parts failed, the first: Part \d/2: .*choose another --out"):
        shards.measure_on_ray(request, tmp_path / "eval", 2, {"num_cpus": 1}, lines.append)
    assert len(lines) == 2 and all(re.match(r"Part \d/2: ", line) for line in lines)
