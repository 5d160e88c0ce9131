"""The index of runs says what the folders say, whatever happened to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.trace import RunWriter, open_run
from kvlab.trace.catalogue import left_out, list_comparisons, list_runs, rebuild
from kvlab.trace.index import FILE
from tests.synthetic.runs import write_synthetic_run

SMALL = {"prompt_tokens": 8, "steps": 1, "level": "light"}


@settings(max_examples=15, deadline=None)
@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from(["full", "h2o", "keepkv"]),
            st.sampled_from(["one", "two", "three"]),
            st.sampled_from(["complete", "cancelled", "failed", "running"]),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda run: run[:2],
    )
)
def test_a_rebuilt_catalogue_equals_the_one_kept_up(tmp_path_factory: pytest.TempPathFactory, runs: list):
    root = tmp_path_factory.mktemp("runs")
    for method, comparison, status in runs:
        write_synthetic_run(root, method=method, comparison_id=comparison, status=status, **SMALL)
    kept_up = list_runs(root)
    assert {(run.method, run.comparison_id, run.status) for run in kept_up} == set(runs)
    assert rebuild(root) == []
    assert list_runs(root) == kept_up
    (root / FILE).unlink()
    assert list_runs(root) == kept_up, "a lost index is made again from the folders"


def test_comparisons_are_newest_first_with_their_runs_in_order(tmp_path: Path):
    for comparison in ("old", "new"):
        for method in ("full", "h2o", "keepkv"):
            write_synthetic_run(tmp_path, method=method, comparison_id=comparison, title=f"the {comparison}", **SMALL)
    found = list_comparisons(tmp_path)
    assert [(entry.comparison_id, entry.title) for entry in found] == [("new", "the new"), ("old", "the old")]
    assert [run.method for run in found[0].runs] == ["full", "h2o", "keepkv"]
    assert len(list_comparisons(tmp_path, limit=1)) == 1
    assert {run.comparison_id for run in list_runs(tmp_path, comparison_id="old")} == {"old"}
    assert len(list_runs(tmp_path, limit=2)) == 2
    assert list_runs(tmp_path, status="failed") == []


def test_a_comparison_is_as_bad_as_its_worst_run(tmp_path: Path):
    for method, status in (("full", "complete"), ("h2o", "cancelled")):
        write_synthetic_run(tmp_path, method=method, status=status, **SMALL)
    assert list_comparisons(tmp_path)[0].status == "cancelled"
    write_synthetic_run(tmp_path, method="keepkv", status="failed", **SMALL)
    assert list_comparisons(tmp_path)[0].status == "failed"
    write_synthetic_run(tmp_path, method="zsmerge", status="running", **SMALL)
    assert list_comparisons(tmp_path)[0].status == "running"


def test_a_damaged_index_is_made_again(tmp_path: Path):
    path = write_synthetic_run(tmp_path, **SMALL)
    for suffix in ("-wal", "-shm"):
        (tmp_path / (FILE + suffix)).unlink(missing_ok=True)
    (tmp_path / FILE).write_bytes(b"no database " * 500)
    assert [run.run_id for run in list_runs(tmp_path)] == [path.name]


def test_a_broken_run_folder_is_named_and_the_others_are_listed(tmp_path: Path):
    good = write_synthetic_run(tmp_path, **SMALL)
    bad = write_synthetic_run(tmp_path, method="h2o", **SMALL)
    (bad / "run.json").write_text("{")
    problems = rebuild(tmp_path)
    assert len(problems) == 1
    assert str(bad) in problems[0]
    assert [run.run_id for run in list_runs(tmp_path)] == [good.name]


def test_a_running_run_without_its_process_is_failed_and_a_reused_process_id_does_not_hide_it(tmp_path: Path):
    path = write_synthetic_run(tmp_path, status="running", **SMALL)
    assert list_runs(tmp_path)[0].status == "running"
    record = open_run(path).record
    long_ago = record.model_copy(update={"run_id": "b", "created": "2001-01-01T00:00:00+00:00"})
    RunWriter(tmp_path, long_ago)
    by_id = {run.run_id: run for run in list_runs(tmp_path)}
    assert by_id["b"].worker_pid == os.getpid()
    assert (by_id["b"].status, by_id["b"].message) == ("failed", "the worker was killed")
    assert by_id[path.name].status == "running"


def test_an_ending_the_index_missed_is_read_from_the_run(tmp_path: Path):
    path = write_synthetic_run(tmp_path, status="running", **SMALL)
    file = path / "run.json"
    ended = open_run(path).record.model_copy(
        update={"status": "cancelled", "message": "stopped", "worker_pid": 2**22 + 1}
    )
    shutil.copy(tmp_path / FILE, tmp_path / "saved")
    file.write_text(ended.model_dump_json())
    rebuild(tmp_path)
    assert [(run.status, run.message) for run in list_runs(tmp_path)] == [("cancelled", "stopped")]


def test_no_folder_means_no_runs(tmp_path: Path):
    assert list_runs(tmp_path / "nothing") == []
    assert list_comparisons(tmp_path / "nothing") == []
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("by", ["copy", "move", "link"])
def test_runs_that_were_put_into_a_listed_folder_are_listed(tmp_path: Path, by: str):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    write_synthetic_run(here, comparison_id="own", **SMALL)
    assert len(list_runs(here)) == 1
    made = [write_synthetic_run(elsewhere, comparison_id="theirs", method=name, **SMALL) for name in ("full", "h2o")]
    expected = list_comparisons(elsewhere)
    for path in made:
        {"copy": shutil.copytree, "move": shutil.move, "link": lambda a, b: b.symlink_to(a)}[by](path, here / path.name)
    assert [entry for entry in list_comparisons(here) if entry.comparison_id == "theirs"] == expected
    assert len(list_runs(here)) == 3
    shutil.rmtree(here / "own-keepkv-25pc-0")
    assert {entry.comparison_id for entry in list_runs(here)} == {"theirs"}


def test_a_renamed_folder_is_named_with_what_to_do_and_listed_once_it_has_its_name_again(tmp_path: Path):
    path = write_synthetic_run(tmp_path, **SMALL)
    before = list_runs(tmp_path)
    renamed = path.rename(tmp_path / "my best run")
    assert list_runs(tmp_path) == []
    (problem,) = left_out(tmp_path, [])
    assert f"not of {renamed.name}: rename the folder back" in problem
    renamed.rename(path)
    assert list_runs(tmp_path) == before


def test_a_copy_that_is_not_whole_yet_is_listed_once_it_is(tmp_path: Path):
    write_synthetic_run(tmp_path / "here", comparison_id="own", **SMALL)
    assert len(list_runs(tmp_path / "here")) == 1
    path = write_synthetic_run(tmp_path / "elsewhere", comparison_id="theirs", **SMALL)
    copy = shutil.copytree(path, tmp_path / "here" / path.name)
    whole = (copy / "run.json").read_bytes()
    (copy / "run.json").write_bytes(whole[:100])
    assert len(list_runs(tmp_path / "here")) == 1
    (copy / "run.json").write_bytes(whole)
    assert len(list_runs(tmp_path / "here")) == 2
