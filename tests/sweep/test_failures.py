"""Failures in a sweep: only the failing shard is given up, with one sentence, and `try_again` runs it again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.results.store import ResultStore
from kvlab.models.load import LoadedModel, drop_model, held_model
from kvlab.sweep.shards import measured_names, shard_path, sweep_rows, try_again
from kvlab.sweep.status import read_status
from kvlab.sweep.worker import MAX_LOST, Worker
from tests.sweep.conftest import asked, planned, untimed


def test_a_shard_that_loses_every_worker_is_left_alone(tiny_folder: Path, folder: Path) -> None:
    plan = planned(folder, asked(tiny_folder, tasks="needle", methods="h2o"))
    worker = Worker(folder)
    path = folder / "sweep" / "leases" / plan.shards[0].name
    told = {"worker": "lost", "place": "elsewhere", "pid": 1, "since": "2026-01-01", "tries": MAX_LOST}
    path.write_text(json.dumps(told))
    os.utime(path, (1, 1))
    worker.work()
    now = read_status(folder)
    (reason,) = now.given_up[plan.shards[0].name]
    assert now.measured == 1 and reason.startswith(f"needle, 220 tokens: {MAX_LOST} workers were lost")


def test_out_of_memory_of_a_single_row_gives_up_its_method_and_the_rest_goes_on(
    tiny_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(folder, asked(tiny_folder, tasks="needle,copy"))
    real = Measurer.measure

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        if prompts[0].identity.task == "copy" and any(choice.method == "h2o" for choice in choices):
            raise torch.OutOfMemoryError("out of memory")
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    Worker(folder).work()
    now = read_status(folder)
    affected = [shard for shard in plan.shards if shard.task == "copy"]
    assert now.failed.keys() == {shard.name for shard in affected} and len(affected) == 2
    (said,) = now.notes
    assert said.startswith("Failed: h2o 20 %, copy, 220 tokens: cpu ran out of memory on one prompt")
    assert now.measured == len(plan.shards) and not now.left and not now.given_up
    counts = sweep_rows(folder).groupby(["task", "method"]).size()
    assert counts["copy"].to_dict() == {"full": 3, "streaming-llm": 3} and set(counts["needle"]) == {3}
    # Asked for again, it is tried again; a shard that cannot be read is too.
    monkeypatch.undo()
    damaged = shard_path(folder, next(iter(sorted(measured_names(folder)))))
    damaged.write_bytes(b"PAR1")
    assert try_again(folder) == [f"{damaged} was damaged: it is measured again."]
    Worker(folder).work()
    now = read_status(folder)
    assert now.measured == len(plan.shards) and not now.notes
    assert set(sweep_rows(folder).groupby(["task", "method"]).size()) == {3}


def test_a_row_that_fits_alone_is_not_given_up(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backoff of long prompts does not hold for shorter ones."""
    planned(folder, asked(tiny_folder, tasks="needle", lengths="140,220"))
    real = Measurer.measure

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        if prompts[0].identity.length == 220 and len(prompts) * len(choices) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    Worker(folder).work()
    rows, now = sweep_rows(folder), read_status(folder)
    assert not now.notes and now.measured == now.planned == 4
    assert rows.groupby("length")["batch_rows"].unique().map(list).to_dict() == {140: [3], 220: [1]}
    long = serial[serial["task"] == "needle"].reset_index(drop=True)
    found = rows[rows["length"] == 220].reset_index(drop=True)
    pd.testing.assert_frame_equal(*(untimed(table).drop(columns="batch_rows") for table in (found, long)))


def test_a_method_that_raises_costs_its_rows_alone(
    tiny_folder: Path, folder: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(folder, asked(tiny_folder))
    real, raised = Measurer.measure, []

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        found = real(self, prompts, choices)
        for number, choice in enumerate(choices):
            if choice.method == "h2o" and prompts[0].identity.task == "key_value":
                raised.append(prompts[0].identity.index)
                found[number] = ValueError("no such head")
        return found

    monkeypatch.setattr(Measurer, "measure", measure)
    said: list[str] = []
    Worker(folder, say=said.append).work()
    now, rows = read_status(folder), sweep_rows(folder)
    failed = [shard for shard in plan.shards if shard.task == "key_value"]
    reason = "h2o 20 %, key_value, 220 tokens: ValueError: no such head (the worker's log has more)."
    assert now.failed == {shard.name: (reason,) for shard in failed} and now.notes == [f"Failed: {reason}"]
    assert now.summary.endswith(f"0 lost, {len(failed)} without a method that failed") and not now.left
    assert sorted(raised) == [0, 2], "it is tried once for each shard, and the rest is measured without it"
    assert "h2o 20 %, key_value, 220 tokens: given up. ValueError: no such head" in "\n".join(said)
    there = serial[serial["key"].isin(rows["key"])].reset_index(drop=True)
    lost = serial[~serial["key"].isin(rows["key"])]
    assert set(zip(lost["task"], lost["method"], strict=True)) == {("key_value", "h2o")} and len(lost) == 3
    pd.testing.assert_frame_equal(*(untimed(table).drop(columns="batch_rows") for table in (rows, there)))
    shown = CliRunner().invoke(commands, ["sweep", "status", str(folder)]).stdout
    assert f"Failed: {reason}" in shown
    # Asked for again, only the missing rows are measured.
    asked_again: list[str] = []

    def spied(self: Measurer, prompts: Any, choices: Any) -> Any:
        asked_again.extend(f"{prompts[0].identity.task} {choice.method}" for choice in choices)
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", spied)
    assert try_again(folder) == []
    assert read_status(folder).left == len(failed)
    Worker(folder).work()
    assert asked_again == ["key_value h2o"] * 3
    assert sweep_rows(folder)["key"].tolist() == serial["key"].tolist() and not read_status(folder).notes
    assert sum(len(table) for table in ResultStore(folder)._tables(["key"])) == len(serial), "no row is there twice"


def test_what_no_method_is_to_blame_for_is_said_once(
    tiny_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(folder, asked(tiny_folder, tasks="needle,copy", samples=1))
    real = Measurer.measure

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        if prompts[0].identity.task == "copy":
            raise UserError("This prompt cannot be read.")
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    Worker(folder).work()
    now = read_status(folder)
    (affected,) = (shard for shard in plan.shards if shard.task == "copy")
    assert now.given_up == {affected.name: ("copy, 220 tokens: This prompt cannot be read.",)}
    assert now.measured == 1 and not now.failed and not now.left


def test_a_worker_of_another_version_refuses(tiny_folder: Path, folder: Path) -> None:
    plan = planned(folder, asked(tiny_folder, tasks="needle", samples=1))
    other = plan.model_copy(update={"versions": plan.versions | {"kvlab": "9.9", "python": "3.99"}})
    (folder / "sweep.json").write_text(other.model_dump_json())
    with pytest.raises(UserError, match=r"This worker has kvlab .* was planned with 9\.9: give all workers the same"):
        Worker(folder)
    now = read_status(folder)
    assert now.errors and "9.9" in now.errors[0] and now.measured == 0 and now.running == 0


def test_other_weights_under_the_same_name_are_refused(
    tiny_folder: Path, tiny: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    changing = tmp_path / "model"
    tiny.model.save_pretrained(changing)
    tiny.tokenizer.save_pretrained(changing)
    request = asked(changing, tasks="needle")
    plan = planned(folder, request)
    first = Worker(folder)
    assert first.run(plan.shards[0])
    first.end()
    with torch.no_grad():
        held_model(request).model.lm_head.weight.mul_(1.1)
    try:
        with pytest.raises(UserError, match=r"The weights of .* are not those that the sweep began with"):
            Worker(folder).work()
    finally:
        drop_model()
    assert read_status(folder).measured == 1
