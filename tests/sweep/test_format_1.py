"""Folders of sweeps that were planned with a shard for each method and budget still open, and keep their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvlab.core.errors import UserError
from kvlab.evaluate.harness import evaluate, settings_of
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.results.rows import ROWS, row_key
from kvlab.models.load import held_model
from kvlab.sweep.plan import SweepPlan, hash_of
from kvlab.sweep.planning import make_sweep
from kvlab.sweep.shards import read_plan, sweep_rows, try_again, write_plan
from kvlab.sweep.status import read_status
from kvlab.sweep.worker import Worker
from tests.sweep.conftest import asked, planned, untimed

OLD_LABELS = {"full": "full cache", "h2o": "h2o 20 %", "streaming-llm": "streaming-llm 20 %"}
Keep = Callable[[str, int, str], bool]  # by task, first prompt and method


@pytest.fixture(scope="module")
def request_(tiny_folder: Path) -> EvalRequest:
    return asked(tiny_folder, tasks="needle,copy")


@pytest.fixture(scope="module")
def serial(request_: EvalRequest, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return evaluate(request_, tmp_path_factory.mktemp("serial")).rows


def old_folder(folder: Path, request: EvalRequest, rows: pd.DataFrame, keep: Keep) -> list[dict[str, Any]]:
    """A folder of format 1 with the rows of those shards that `keep` chooses; returns its shards that are missing."""
    plan, _ = make_sweep([request], 2)
    prompts = make_plan(request, held_model(request).tokenizer, 1024).prompts
    (folder / "shards").mkdir(parents=True)
    shards, missing = [], []
    for shard in plan.shards:
        for index, choice in enumerate(request.all_choices):
            part = [prompt.identity for prompt in prompts[shard.start : shard.stop]]
            keys = [row_key(one, choice, settings_of(choice), True, request.model, "") for one in part]
            old = {
                **shard.model_dump(include={"request", "start", "stop", "task", "length", "cost"}),
                "name": hash_of(keys),
                "choice": index,
                "label": OLD_LABELS[choice.method],
            }
            shards.append(old)
            if not keep(shard.task, shard.start, choice.method):
                missing.append(old)
                continue
            known = rows[(rows["task"] == shard.task) & (rows["method"] == choice.method)]
            known = known[known["index"].isin([one.index for one in part])]
            table = pa.Table.from_pandas(known, schema=ROWS, preserve_index=False)
            pq.write_table(table, folder / "shards" / f"{old['name']}.parquet")
    text = plan.model_dump(mode="json") | {"format": 1, "shards": shards}
    (folder / "sweep.json").write_text(json.dumps(text))
    return missing


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """Task, number of the prompt and method of every row that is measured."""
    found: list[tuple[str, int, str]] = []
    real = Measurer.measure

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        found.extend((one.identity.task, one.identity.index, choice.method) for one in prompts for choice in choices)
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    return found


def test_a_finished_folder_is_finished(
    folder: Path, request_: EvalRequest, serial: pd.DataFrame, measured: list[tuple[str, int, str]]
) -> None:
    assert not old_folder(folder, request_, serial, lambda *_: True)
    now = read_status(folder)
    assert (now.measured, now.planned, now.left, now.notes) == (4, 4, 0, [])
    pd.testing.assert_frame_equal(sweep_rows(folder), serial, check_exact=True)
    files = set(folder.rglob("*.parquet"))
    Worker(folder).work()
    assert not measured and set(folder.rglob("*.parquet")) == files


def test_the_plan_is_that_of_today_but_for_the_names_that_it_joins(folder: Path, request_: EvalRequest) -> None:
    old_folder(folder, request_, pd.DataFrame(), lambda *_: False)
    joined, (today, _) = read_plan(folder), make_sweep([request_], 2)
    assert all(len(shard.format_1) == 3 and hash_of(shard.format_1) == shard.name for shard in joined.shards)
    shards = tuple(shard.model_copy(update={"format_1": ()}) for shard in joined.shards)
    assert joined.model_copy(update={"shards": shards}) == today
    write_plan(folder, joined)
    assert read_plan(folder) == joined


def test_what_is_open_is_measured_and_what_is_there_is_kept(
    folder: Path, request_: EvalRequest, serial: pd.DataFrame, measured: list[tuple[str, int, str]]
) -> None:
    def keep(task: str, start: int, method: str) -> bool:
        return task == "needle" or method == "h2o"

    missing = old_folder(folder, request_, serial, keep)
    assert len(missing) == 4
    kept = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    now = read_status(folder)
    assert (now.measured, now.planned, now.left) == (2, 4, 2)
    before = serial[(serial["task"] == "needle") | (serial["method"] == "h2o")].reset_index(drop=True)
    pd.testing.assert_frame_equal(sweep_rows(folder), before, check_exact=True)
    Worker(folder).work()
    assert sorted(measured) == sorted(
        ("copy", index, method) for index in range(3) for method in ("full", "streaming-llm")
    )
    assert {path: path.read_bytes() for path in kept} == kept
    rows = sweep_rows(folder)
    pd.testing.assert_frame_equal(*(untimed(table).drop(columns="batch_rows") for table in (rows, serial)))
    both = rows[rows["key"].isin(before["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(both, before, check_exact=True)
    assert not read_status(folder).left


def test_what_was_given_up_stays_so_until_it_is_asked_for_again(
    folder: Path, request_: EvalRequest, serial: pd.DataFrame, measured: list[tuple[str, int, str]]
) -> None:
    def keep(task: str, start: int, method: str) -> bool:
        return task == "needle" or (method != "h2o" and start == 3)

    missing = old_folder(folder, request_, serial, keep)
    for old in missing:
        note = {"sentence": "cpu ran out of memory.", "shard": f"{old['label']}, {old['task']}", "worker": "w"}
        (folder / "shards" / f"_{old['name']}.json").write_text(json.dumps(note))
    now = read_status(folder)
    assert (now.measured, now.left) == (3, 0)
    assert list(now.failed.values()) == [("h2o 20 %, copy: cpu ran out of memory.",)]
    assert list(now.given_up.values()) == [tuple(f"{old}, copy: cpu ran out of memory." for old in OLD_LABELS.values())]
    Worker(folder).work()
    assert not measured
    try_again(folder)
    assert read_status(folder).left == 2
    Worker(folder).work()
    assert len(measured) == sum(old["stop"] - old["start"] for old in missing) == 5
    assert sweep_rows(folder)["key"].tolist() == serial["key"].tolist() and not read_status(folder).notes


def test_another_plan_for_the_folder_finds_its_rows_by_key(
    folder: Path, request_: EvalRequest, serial: pd.DataFrame, measured: list[tuple[str, int, str]]
) -> None:
    """For any block size; a third plan with one more method also reuses the rows of the second."""
    old_folder(folder, request_, serial, lambda task, start, method: task == "copy")
    plan = planned(folder, request_, block=3)
    assert isinstance(plan, SweepPlan) and json.loads((folder / "sweep.json").read_text())["format"] == 2
    Worker(folder).work()
    assert {task for task, _, _ in measured} == {"needle"} and len(measured) == 9
    pd.testing.assert_frame_equal(untimed(sweep_rows(folder)), untimed(serial), check_exact=True)
    measured.clear()
    planned(folder, asked(Path(request_.model), tasks="needle,copy", methods="h2o,streaming-llm,keepkv"), block=3)
    Worker(folder).work()
    assert {method for _, _, method in measured} == {"keepkv"} and len(measured) == 6


def test_a_plan_that_lacks_a_method_is_one_sentence(folder: Path, request_: EvalRequest) -> None:
    old_folder(folder, request_, pd.DataFrame(), lambda *_: False)
    path = folder / "sweep.json"
    plan = json.loads(path.read_text())
    for change in ({"shards": plan["shards"][1:]}, {"shards": [plan["shards"][0] | {"request": 7}]}):
        path.write_text(json.dumps(plan | change))
        with pytest.raises(UserError, match=r"is damaged \(a block of prompts lacks a method\): create it again"):
            read_plan(folder)
