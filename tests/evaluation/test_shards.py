"""Parts of an evaluation in one folder: the table of one process, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.evaluation.harness import evaluate, prepare_evaluation
from kvlab.evaluation.measure import Measurer
from kvlab.evaluation.plan import Shard, blocks
from kvlab.evaluation.results.rows import PromptIdentity, ResultStore, read_results
from kvlab.evaluation.results.summary import summarize
from tests.evaluation.test_harness import request

OPTIONS = (
    "--tasks needle,key_value:pairs=8,next_token_kl:continuation=8 --methods h2o,streaming-llm --budgets 0.2 "
    "--lengths 220 --samples 3 --seed 3 --device cpu --force"
)
TIMED = ["seconds", "prompt_seconds"]


def asked(**changes: Any) -> Any:
    return request(**{"budgets": "0.2", "samples": 3, "device": "cpu"} | changes)


def shards(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def serial(tiny: Any, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The rows of one process."""
    return evaluate(asked(model=str(tiny_folder)), tmp_path_factory.mktemp("serial")).rows


def measured(folder: Path, like: pd.DataFrame) -> pd.DataFrame:
    """The folder's rows without their seconds, in the order of `like`."""
    rows = ResultStore(folder).frame().set_index("key", drop=False)
    return rows.loc[like["key"]].reset_index(drop=True).drop(columns=TIMED)


def assert_equal(folder: Path, serial: pd.DataFrame, interrupted: bool = False) -> None:
    """The folder has each row of `serial` once, and equal but for its seconds.

    `interrupted`: where some methods of a prompt were written, the others ran with fewer rows, which rounds otherwise.
    """
    assert sum(len(table) for table in ResultStore(folder)._tables(["key"])) == len(serial), "a row is there twice"
    unequal = ["batch_rows"] if interrupted else []
    rows, expected = measured(folder, serial).drop(columns=unequal), serial.drop(columns=[*TIMED, *unequal])
    pd.testing.assert_frame_equal(rows, expected, check_exact=not interrupted)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 7)), max_size=6), st.integers(1, 5))
def test_blocks_hold_every_prompt_once_and_one_cell_each(cells: list[tuple[str, int, int]], size: int) -> None:
    prompts = [PromptIdentity(task, "{}", length, None, i, 0) for task, length, count in cells for i in range(count)]
    found = blocks(prompts, size)
    assert [number for start, stop in found for number in range(start, stop)] == list(range(len(prompts)))
    for start, stop in found:
        assert 1 <= stop - start <= size
        assert len({(prompt.task, prompt.length) for prompt in prompts[start:stop]}) == 1


@settings(deadline=None)
@given(st.integers(1, 12), st.sampled_from([1, 3]))
def test_the_parts_hold_every_prompt_once_and_are_equally_large(tiny: Any, count: int, batch: int) -> None:
    whole = prepare_evaluation(asked(batch_rows=batch), tiny)
    parts = [whole.part(shard).units for shard in shards(count)]
    identities = [unit.prompt.identity for part in parts for unit in part]
    assert sorted(map(str, identities)) == sorted(str(unit.prompt.identity) for unit in whole.units)
    if batch == 1:
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "-1/3", "1/3/3", "a/b", "", "1/9999999", "1 /3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="such as 3/8"):
        Shard.parse(text)


def test_parts_give_the_rows_and_the_table_of_one_process(
    tiny_folder: Path, tmp_path: Path, serial: pd.DataFrame
) -> None:
    wanted = asked(model=str(tiny_folder))
    for shard in reversed(shards(4)):
        evaluate(wanted, tmp_path, shard=shard)
    assert_equal(tmp_path, serial)
    again = evaluate(wanted, tmp_path).rows  # without parts: all is there
    assert not list(tmp_path.glob("part-*"))
    mine, theirs = (summarize(rows) for rows in (again, serial))
    same = [name for name in mine if "seconds" not in name]
    pd.testing.assert_frame_equal(mine[same], theirs[same], check_exact=True)
    assert set(read_results(tmp_path)["key"]) == set(serial["key"])


def test_prompts_that_run_together_in_one_process_do_so_in_parts(tiny_folder: Path, tmp_path: Path) -> None:
    wanted = asked(model=str(tiny_folder), tasks="needle,copy", samples=5, batch_rows=3)
    alone = evaluate(wanted, tmp_path / "alone").rows
    for shard in shards(2):
        evaluate(wanted, tmp_path / "parts", shard=shard)
    assert alone["batch_rows"].max() > 1
    assert_equal(tmp_path / "parts", alone)


def test_rows_that_are_there_are_not_measured_again(
    tiny_folder: Path, tmp_path: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one process, from a part of another count, and from a part that was stopped."""
    evaluate(asked(model=str(tiny_folder), methods="h2o", tasks="needle"), tmp_path)
    wanted, real, prompts = asked(model=str(tiny_folder)), Measurer.measure, []

    def measure(self: Measurer, given: Any, choices: Any) -> Any:
        prompts.append(given[0].identity)
        if len(prompts) == 4:
            raise SystemExit
        return real(self, given, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    with pytest.raises(SystemExit):
        evaluate(wanted, tmp_path, shard=Shard(1, 1))
    for shard in shards(3):
        evaluate(wanted, tmp_path, shard=shard)
    stopped = prompts[3]
    assert prompts.count(stopped) == 2 and len(prompts) == 9 + 1, "only the interrupted prompt is read again"
    assert_equal(tmp_path, serial, interrupted=True)


def test_a_method_that_fails_costs_its_own_rows_and_is_tried_again(
    tiny_folder: Path, tmp_path: Path, serial: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Measurer.measure

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        found = real(self, prompts, choices)
        failed = [choice.method == "h2o" for choice in choices]
        return [UserError("It fails.") if wrong else one for wrong, one in zip(failed, found, strict=True)]

    wanted = asked(model=str(tiny_folder))
    with monkeypatch.context() as patched:
        patched.setattr(Measurer, "measure", measure)
        for shard in shards(2):
            with pytest.raises(UserError, match="It fails"):
                evaluate(wanted, tmp_path, shard=shard)
    kept = ResultStore(tmp_path).frame()
    assert "h2o" not in set(kept["method"]) and len(kept) == len(serial) * 2 // 3
    for shard in shards(2):
        evaluate(wanted, tmp_path, shard=shard)
    assert set(ResultStore(tmp_path).frame()["key"]) == set(serial["key"])


SLOW = """
import time
from kvlab.evaluation.results import rows as store
store.FLUSH_SECONDS = 0.0
flush = store.ResultStore.flush
store.ResultStore.flush = lambda one: (flush(one), time.sleep(0.3))
from kvlab.cli import main
main()
"""


def test_parts_that_are_killed_outright_lose_no_row_that_is_in_the_folder(
    tiny_folder: Path, tmp_path: Path, serial: pd.DataFrame
) -> None:
    """Two processes at once, both killed by -9 once they wrote rows, and started again."""
    folder = tmp_path / "eval"

    def start(shard: Shard) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            SLOW,
            "eval",
            "--out",
            str(folder),
            "--model",
            str(tiny_folder),
            *OPTIONS.split(),
        ]
        return subprocess.Popen([*command, "--shard", str(shard)], stderr=subprocess.PIPE, env=os.environ)

    running = [start(shard) for shard in shards(2)]
    deadline = time.monotonic() + 120
    while len(list((folder / "shards").glob("*.parquet"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for process in running:
        process.kill()
    assert {process.wait() for process in running} == {-signal.SIGKILL}
    before = ResultStore(folder).frame()
    assert 0 < len(before) < len(serial)
    for shard, process in [(shard, start(shard)) for shard in shards(2)]:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0 and f"Part {shard}" in errors.decode(), errors.decode()
    assert_equal(folder, serial, interrupted=True)
    after = ResultStore(folder).frame().set_index("key").loc[before["key"]]
    pd.testing.assert_frame_equal(after, before.set_index("key"))  # seconds too: none was measured again


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--on", "moon"], "--on takes ray, not 'moon'"),
        (["--on", "ray:partition"], "cannot be read"),
        (["--on", "ray", "--shard", "1/2"], "leave out --shard"),
        (["--shard", "3/2"], "such as 3/8"),
        (
            ["--shard", "1/2", "--question-aware", "no", "--set", "keep_prefixes=yes"],
            "--set keep_prefixes needs the whole evaluation",
        ),
        (["--on", "ray", "--preset", "keepkv-table2", "--data", "none"], "--preset needs the whole evaluation"),
    ],
)
def test_what_cannot_be_measured_in_parts_is_refused(tmp_path: Path, options: list[str], sentence: str) -> None:
    from typer.testing import CliRunner

    from kvlab.cli import commands

    result = CliRunner().invoke(commands, ["eval", "--out", str(tmp_path / "it"), *options])
    assert isinstance(result.exception, UserError) and sentence in str(result.exception)
    assert not (tmp_path / "it").exists()
