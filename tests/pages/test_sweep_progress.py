"""The folder of a sweep opens on the page Quality like an evaluation, and says how far it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from streamlit.testing.v1 import AppTest

from kvlab.evaluate.request_parser import parse_request
from kvlab.evaluate.results.rows import ROWS
from kvlab.sweep.leases import Holder
from kvlab.sweep.shards import Shard, SweepPlan, give_up, write_plan
from kvlab.sweep.status import WorkerFile
from tests.evaluate.test_harness import SETTINGS
from tests.pages.test_board_page import told
from tests.pages.test_quality import results

Open = Callable[..., AppTest]


def sweep(root: Path, count: int) -> tuple[Path, list[Shard]]:
    """The plan of a sweep that nobody has begun."""
    request = parse_request(**SETTINGS)
    common = {"request": 0, "choice": 0, "start": 0, "stop": 1, "task": "needle", "length": 64, "label": "h2o 20 %"}
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
    folder, shards = sweep(runs_root, 3)
    table = pa.Table.from_pandas(rows.assign(key="s" + rows["key"], seed=7), schema=ROWS, preserve_index=False)
    pq.write_table(table, folder / "shards" / f"{shards[0].name}.parquet")
    give_up(folder, shards[1], "cpu ran out of memory on one prompt", "w")
    WorkerFile(folder, Holder.this_process(), 60)
    lost = WorkerFile(folder, Holder("lost", "elsewhere", 1, "2026-01-01T00:00:00+00:00"), 60)
    (folder / "sweep" / "workers" / "refused.json").write_text(
        json.dumps({"holder": vars(lost.holder) | {"worker": "refused"}, "seconds": 60, "ended": "Another version."})
    )
    os.utime(lost.path, (1, 1))
    page = open_page("quality", evaluation="night")
    assert "1 of 3 shards, 3 workers seen, 1 lost, 1 given up" in bar(page)
    assert "Level with the best by paired differences" in told(page)
    text = "\n".join(str(line.value).replace("\\", "") for line in page.markdown).replace("\u00a0", " ")
    assert "h2o 20 %, needle: cpu ran out of memory on one prompt" in text and "Another version." in text
    assert not bar(open_page("quality", evaluation="other"))


def bar(page: AppTest) -> str:
    """What the bars of the page say."""
    assert not page.exception
    return "\n".join(element.proto.text.replace("\\", "") for element in page.get("progress"))
