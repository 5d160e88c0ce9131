"""The folder of a sweep opens on the page Quality like an evaluation, and says how far it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from kvlab.evaluate.request_parser import parse_request
from kvlab.evaluate.results.rows import ROWS
from kvlab.results.sources import Sources
from kvlab.sweep.leases import Holder
from kvlab.sweep.plan import Shard, SweepPlan
from kvlab.sweep.shards import give_up, incomplete_path, write_plan
from kvlab.sweep.status import WorkerFile
from tests.evaluate.test_harness import SETTINGS
from tests.pages.test_board_page import told
from tests.pages.test_quality import results

Open = Callable[..., AppTest]


def sweep(root: Path, count: int) -> tuple[Path, list[Shard]]:
    """The plan of a sweep that nobody has begun."""
    request = parse_request(**SETTINGS)
    common = {"request": 0, "start": 0, "stop": 1, "task": "needle", "length": 64}
    shards = [Shard(name=f"{number:032x}", cost=1, **common) for number in range(count)]
    folder = root / "eval" / "night"
    write_plan(folder, SweepPlan(versions={}, requests=(request,), block=1, shards=tuple(shards)))
    return folder, shards


def test_a_sweep_is_there_from_its_plan_on(runs_root: Path, open_page: Open) -> None:
    sweep(runs_root, 4)
    page = open_page("quality")
    assert "0 of 4 shards, 0 workers seen, 0 lost" in bar(page)
    assert "This evaluation has no results yet" in told(page)


def test_a_sweep_is_drawn_as_its_shards_come(runs_root: Path, open_page: Open) -> None:
    rows = results(runs_root, "other")
    folder, shards = sweep(runs_root, 4)
    for seed, path in enumerate(
        [folder / "shards" / f"{shards[0].name}.parquet", incomplete_path(folder, shards[2].name)]
    ):
        table = rows.assign(key=f"s{seed}" + rows["key"], seed=seed)
        pq.write_table(pa.Table.from_pandas(table, schema=ROWS, preserve_index=False), path)
    give_up(folder, shards[1], "3 workers were lost", "w")
    give_up(folder, shards[2], "", "w", {"h2o 20 %": "cpu ran out of memory on one prompt"})
    WorkerFile(folder, Holder.this_process(), 60)
    lost = WorkerFile(folder, Holder("lost", "elsewhere", 1, "2026-01-01T00:00:00+00:00"), 60)
    (folder / "sweep" / "workers" / "refused.json").write_text(
        json.dumps({"holder": vars(lost.holder) | {"worker": "refused"}, "seconds": 60, "ended": "Another version."})
    )
    os.utime(lost.path, (1, 1))
    page = open_page("quality", evaluation="night")
    assert "2 of 4 shards, 3 workers seen, 1 lost, 1 without a method that failed, 1 given up" in bar(page)
    assert "Level with the best by paired differences" in told(page)
    text = "\n".join(str(line.value).replace("\\", "") for line in page.markdown).replace("\u00a0", " ")
    assert "Failed: h2o 20 %, needle, 64 tokens: cpu ran out of memory on one prompt" in text
    assert "Given up: needle, 64 tokens: 3 workers were lost" in text and "Another version." in text
    assert not bar(open_page("quality", evaluation="other"))


def test_rows_that_a_worker_replaces_meanwhile_are_skipped(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker removes the first rows of a shard once it has them all, perhaps between listing and reading."""
    there, real = results(runs_root, "other"), Path.rglob

    def listed(self: Path, pattern: str) -> list[Path]:
        return [*real(self, pattern), self / "shards" / "gone-incomplete.parquet"]

    monkeypatch.setattr(Path, "rglob", listed)
    assert set(Sources(runs_root).evaluations["key"]) == set(there["key"])


def bar(page: AppTest) -> str:
    """What the bars of the page say."""
    assert not page.exception
    return "\n".join(element.proto.text.replace("\\", "") for element in page.get("progress"))
