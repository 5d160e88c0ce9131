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
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.cli.sweep import sweep_commands
from kvlab.common.errors import UserError
from kvlab.evaluate.harness import evaluate, settings_of
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.plan import BLOCK, blocks, make_plan
from kvlab.evaluate.results.rows import PromptIdentity, row_key
from kvlab.evaluate.results.store import ResultStore, read_results
from kvlab.evaluate.results.summary import summarize
from kvlab.models.load import LoadedModel, drop_model, held_model
from kvlab.sweep import local, shard_run
from kvlab.sweep.on_ray import check_address
from kvlab.sweep.shards import WORKER, measured_names, read_plan, shard_path, sweep_rows, try_again
from kvlab.sweep.status import read_status
from kvlab.sweep.worker import MAX_LOST, Worker
from tests.sweep.conftest import asked, planned, untimed


@pytest.fixture(scope="module")
def serial(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return evaluate(asked(tiny_folder), tmp_path_factory.mktemp("serial")).rows


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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_dead_address_is_said_at_once(address: str) -> None:
    with pytest.raises(UserError, match="No Ray answers at") as error:
        check_address(address)
    assert "\n" not in str(error.value)
    check_address(None)
    check_address("auto")


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("plan", "{}", "--tasks", "haystack"), "There is no task called 'haystack'"),
        (("plan", "{}", "--methods", "h3o"), "h3o"),
        (("plan", "{}", "--tasks", "needle", "--block", "0"), "--block"),
        (("plan", "{}", "--tasks", "needle", "--model", "nowhere/at-all"), "nowhere/at-all"),
        (("run", "{}"), "holds no sweep"),
        (("work", "{}"), "holds no sweep"),
        (("status", "{}"), "holds no sweep"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    found = CliRunner().invoke(commands, ["sweep", *(text.format(tmp_path / "x") for text in arguments)])
    assert isinstance(found.exception, UserError) and told in str(found.exception)
    assert "\n" not in str(found.exception) and not (tmp_path / "x" / "sweep.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format": 2}',
        '{"format": 3}',
        '{"format":1,"versions":{},"requests":[],"block":2,"shards":[{"name":"../x"}]}',
    ],
)
def test_a_malformed_plan_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    for command in ("status", "work", "run"):
        found = CliRunner().invoke(commands, ["sweep", command, str(tmp_path)])
        assert isinstance(found.exception, UserError) and "create it again" in str(found.exception)
        assert "\n" not in str(found.exception)


def test_the_command_plans_and_tells_how_far_it_is(tiny_folder: Path, folder: Path) -> None:
    run = CliRunner()
    options = ["--model", f"{tiny_folder}", "--tasks", "needle", "--methods", "h2o", "--budgets", "0.2"]
    planned_ = run.invoke(commands, ["sweep", "plan", str(folder), *options, "--lengths", "120", "--samples", "2"])
    assert planned_.exit_code == 0, planned_.output
    assert "1 shard of at most 32 prompts, 4 rows; 0 of the shards measured." in planned_.output
    assert run.invoke(commands, ["sweep", "status", str(folder)]).stdout == "0 of 1 shards, 0 workers seen, 0 lost\n"
    worked = run.invoke(commands, ["sweep", "work", str(folder)])
    assert worked.exit_code == 0, worked.output
    told = json.loads(run.invoke(commands, ["sweep", "status", str(folder), "--json"]).stdout)
    assert told["planned"] == told["there"] == 1 and told["workers"][0]["ended"] == "done"


def test_an_option_of_sbatch_that_cannot_be_read_is_a_sentence(tiny_folder: Path, folder: Path) -> None:
    planned(folder, asked(tiny_folder, tasks="needle", samples=1))
    for options, told in (
        (["--on", "cloud"], "local, slurm or ray"),
        (["--on", "slurm", "--slurm", "gpu"], "name=value"),
    ):
        found = CliRunner().invoke(commands, ["sweep", "run", str(folder), *options])
        assert isinstance(found.exception, UserError) and told in str(found.exception)


def test_what_the_guide_writes_can_be_typed() -> None:
    guide = Path(__file__).parents[2] / "docs" / "sweeps.md"
    lines = [line.split("#")[0].split()[2:] for line in guide.read_text().splitlines() if "    kvlab sweep " in line]
    known: Any = get_command(sweep_commands)
    assert {words[0] for words in lines} == {"plan", "run", "work", "status"}
    for name, *words in lines:
        command = known.commands[name]
        command.make_context(name, list(words), resilient_parsing=True)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words
