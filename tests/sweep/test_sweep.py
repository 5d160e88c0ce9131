"""A sweep gives the table of one process, whoever dies on the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.evaluate.harness import evaluate, settings_of
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.plan import BLOCK, blocks, make_plan
from kvlab.evaluate.results.rows import PromptIdentity, row_key
from kvlab.evaluate.results.store import ResultStore, read_results
from kvlab.evaluate.results.summary import summarize
from kvlab.models.load import held_model
from kvlab.sweep import local, shard_run
from kvlab.sweep.shards import WORKER, read_plan, shard_path, sweep_rows
from kvlab.sweep.status import read_status
from kvlab.sweep.worker import Worker
from tests.sweep.conftest import asked, planned, untimed


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 7)), max_size=6), st.integers(1, 5))
def test_blocks_hold_every_prompt_once_and_one_cell_each(cells: list[tuple[str, int, int]], size: int) -> None:
    prompts = [PromptIdentity(task, "{}", length, None, i, 0) for task, length, count in cells for i in range(count)]
    found = blocks(prompts, size)
    assert [number for start, stop in found for number in range(start, stop)] == list(range(len(prompts)))
    for start, stop in found:
        assert 1 <= stop - start <= size
        assert len({(prompt.task, prompt.length) for prompt in prompts[start:stop]}) == 1


def test_a_plan_names_every_row_once_by_model_the_dearest_first(tiny_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(tiny_folder)
    lengths = "140,220"
    requests = asked(tiny_folder, lengths=lengths), asked(other, lengths=lengths)
    plan = planned(tmp_path / "sweep", *requests)
    assert read_plan(tmp_path / "sweep") == plan
    assert [shard.request for shard in plan.shards] == sorted(shard.request for shard in plan.shards)
    for number, request in enumerate(requests):
        mine = [shard for shard in plan.shards if shard.request == number]
        assert [shard.cost for shard in mine] == sorted((shard.cost for shard in mine), reverse=True)
        prompts = len(make_plan(request, held_model(request).tokenizer, 1024).prompts)
        assert sorted(place for shard in mine for place in range(shard.start, shard.stop)) == list(range(prompts))
    assert plan.num_rows == len(requests) * prompts * 3
    assert len({shard.name for shard in plan.shards}) == len(plan.shards)


def test_a_shard_is_named_by_the_keys_of_its_rows(tiny_folder: Path, folder: Path) -> None:
    request = asked(tiny_folder, tasks="needle", samples=2)
    plan = planned(folder, request)
    identities = [PromptIdentity("needle", json_of(request, index), 220, None, index, 3) for index in range(2)]
    (shard,) = plan.shards
    hashes = []
    for choice in request.all_choices:
        keys = [row_key(one, choice, settings_of(choice), True, request.model, "") for one in identities]
        hashes.append(hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32])
    assert shard.name == hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:32]


def json_of(request: Any, index: int) -> str:
    return make_plan(request, held_model(request).tokenizer, 1024).prompts[index].identity.difficulty


def test_a_sweep_gives_the_rows_and_the_table_of_one_process(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame
) -> None:
    plan = planned(folder, asked(tiny_folder))
    Worker(folder).work()
    rows = sweep_rows(folder)
    pd.testing.assert_frame_equal(untimed(rows), untimed(serial), check_exact=True)
    mine, theirs = (summarize(found) for found in (rows, serial))
    same = [name for name in mine if "seconds" not in name]
    pd.testing.assert_frame_equal(mine[same], theirs[same], check_exact=True)
    now = read_status(folder)
    assert (now.measured, now.planned, now.left, now.lost) == (len(plan.shards), len(plan.shards), 0, 0)
    assert now.summary == f"{len(plan.shards)} of {len(plan.shards)} shards, 1 worker seen, 0 lost"
    measured_by = [pq.read_schema(shard_path(folder, shard.name)).metadata[WORKER] for shard in plan.shards]
    assert {name.decode() for name in measured_by} == {worker.name for worker in now.workers}
    # An evaluation in one process finds all of it, and whatever reads evaluations reads a sweep.
    before = set(folder.rglob("*.parquet"))
    again = evaluate(asked(tiny_folder), folder).rows
    pd.testing.assert_frame_equal(again, rows)
    assert set(folder.rglob("*.parquet")) == before
    assert set(read_results(folder)["key"]) == set(serial["key"])


def test_prompts_that_run_together_in_one_process_do_so_in_a_sweep(
    tiny_folder: Path, folder: Path, tmp_path: Path
) -> None:
    request = asked(tiny_folder, tasks="needle,copy", samples=5, batch_rows=3)
    planned(folder, request, block=BLOCK)
    Worker(folder).work()
    alone = evaluate(request, tmp_path / "alone").rows
    assert alone["batch_rows"].max() > 1
    pd.testing.assert_frame_equal(untimed(sweep_rows(folder)), untimed(alone), check_exact=True)


def test_a_sweep_takes_over_what_one_process_left(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(asked(tiny_folder, methods="h2o"), folder)
    kept = ResultStore(folder).frame()
    planned(folder, asked(tiny_folder))
    real, measured = Measurer.measure, []

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        measured.extend(choice.method for choice in choices)
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    Worker(folder).work()
    rows = sweep_rows(folder)
    assert set(measured) == {"streaming-llm"}
    # Fewer rows ran together, which is another order of rounding.
    apart = [untimed(table).drop(columns="batch_rows") for table in (rows, serial)]
    pd.testing.assert_frame_equal(*apart)
    both = rows[rows["key"].isin(kept["key"])].set_index("key")
    pd.testing.assert_frame_equal(both, kept.set_index("key").loc[both.index])
    assert ResultStore(folder).frame()["key"].is_unique


def test_two_workers_one_killed_outright_and_every_row_once(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(folder, asked(tiny_folder), block=1)
    monkeypatch.setattr(local, "MAX_RESTARTS", 0)
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            for path in (folder / "sweep" / "leases").glob("[!.]*"):
                try:
                    killed.append(int(json.loads(path.read_text())["pid"]))
                    os.kill(killed[0], signal.SIGKILL)
                    return
                except (OSError, ValueError):
                    continue
            time.sleep(0.002)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    said: list[str] = []
    local.run_local(folder, 2, said.append)
    thread.join(10)
    rows = sweep_rows(folder)
    pd.testing.assert_frame_equal(untimed(rows), untimed(serial), check_exact=True)
    found = ResultStore(folder)
    assert sum(len(table) for table in found._tables(["key"])) == len(rows), "no row is there twice"
    now = read_status(folder)
    assert now.lost == 1 and len(now.workers) == 2 and now.measured == len(plan.shards)
    assert any(f"Worker {killed[0]} was lost (signal 9)" in line for line in said)
    print(f"{len(rows)} rows, killed {killed}, workers {[worker.pid for worker in now.workers]}")


def test_a_stopped_worker_leaves_the_prompts_that_it_measured(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(folder, asked(tiny_folder), block=3)
    monkeypatch.setattr(shard_run, "SAVE_SECONDS", 0)
    real, read = Measurer.measure, []

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        read.append(prompts[0].identity)
        if len(read) == 3:
            raise SystemExit
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    with pytest.raises(SystemExit):
        Worker(folder).work()
    first = sweep_rows(folder)
    assert len(first) == 3 and set(first["method"]) == {"full", "h2o", "streaming-llm"}
    assert read_status(folder).measured == 0
    Worker(folder).work()
    assert read.count(read[0]) == 1, "it is not read again"
    pd.testing.assert_frame_equal(untimed(sweep_rows(folder)), untimed(serial), check_exact=True)
    assert sum(len(table) for table in ResultStore(folder)._tables(["key"])) == len(serial), "no row is there twice"
