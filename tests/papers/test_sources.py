"""What an exhibit can be drawn from: results of evaluations and benchmarks, as they lie in the folder of runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.papers.benchmarks import bench_origin
from kvlab.papers.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.papers.registry import EXHIBITS
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import open_run
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import Provenance
from tests.synthetic.runs import write_synthetic_run


def part(root: Path, name: str, **columns: list) -> None:
    folder = root / "eval" / "some"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_parquet(folder / f"{name}.parquet")


def test_parts_written_by_different_versions_are_read_together(tmp_path: Path):
    part(tmp_path, "a", key=["1", "2"], score=[1, 0])
    part(tmp_path, "b", key=["3"], score=[0.5], question_aware=[True])
    rows = Sources(tmp_path).evaluations
    assert rows["key"].tolist() == ["1", "2", "3"]
    assert rows["score"].tolist() == [1, 0, 0.5]
    assert rows["question_aware"].isna().tolist() == [True, True, False]
    assert set(rows["name"]) == {"some"}


def test_a_key_counts_once_however_often_it_was_written(tmp_path: Path):
    part(tmp_path, "a", key=["1", "2"], score=[1.0, 0.0])
    part(tmp_path, "b", key=["2"], score=[0.0])
    assert Sources(tmp_path).evaluations["key"].tolist() == ["1", "2"]


def test_an_empty_folder_has_no_results(tmp_path: Path):
    (tmp_path / "eval" / "empty").mkdir(parents=True)
    assert Sources(tmp_path).evaluations.empty
    assert Sources(tmp_path).benchmarks.empty


def test_a_benchmark_says_its_device_size_and_versions():
    measured = {"name": "first", "device": "cpu", "dtype": "float32", "scale": 16, "shorten": 8, "repeats": 3}
    rows = pd.DataFrame([measured | {"versions": '{"kvlab": "0.1.0", "torch": "2.13.0"}'}])
    assert str(bench_origin(rows)) == (
        "benchmark first · cpu · float32 · 1/16 of the layers and width, 1/8 of the tokens · medians of 3 repeats · "
        "kvlab 0.1.0, torch 2.13.0"
    )
    whole = bench_origin(rows.assign(scale=1, shorten=1, versions=""))
    assert str(whole).endswith("· full size · medians of 3 repeats")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in ("full", "h2o"):
        write_synthetic_run(root, method=method, layers=1, prompt_tokens=12, steps=2)
    part(root, "a", key=["1"], score=[1.0])
    return root


def of(root: Path, which: int) -> Sources:
    runs = [open_run(root / entry.run_id) for entry in list_runs(root)]
    return Sources(root, runs[which], runs)


def exhibit_of(source: str) -> Exhibit:
    return next(exhibit for exhibit in EXHIBITS if exhibit.source == source)


@pytest.mark.parametrize("source", ["eval", "bench"])
def test_results_are_drawn_once_for_all_runs_of_a_model(recorded: Path, source: str):
    stamps = [exhibit_of(source).source_state(of(recorded, which)) for which in (0, 1)]
    assert stamps[0] == stamps[1]
    part(recorded, f"more-{source}", key=["2"], score=[0.0])
    assert exhibit_of(source).source_state(of(recorded, 0)) != stamps[0]


@pytest.mark.parametrize("source", ["run", "comparison"])
def test_what_is_recorded_is_drawn_anew_where_runs_changed_and_not_with_every_write_to_the_index(
    recorded: Path, source: str
):
    before = exhibit_of(source).source_state(of(recorded, 0))
    assert exhibit_of(source).source_state(of(recorded, 1)) != before
    (recorded / "catalogue.sqlite").touch()
    part(recorded, f"beside-{source}", key=["3"], score=[0.0])
    assert exhibit_of(source).source_state(of(recorded, 0)) == before
    write_synthetic_run(recorded, method="h2o", seed=len(source), layers=1, prompt_tokens=12, steps=2)
    assert exhibit_of(source).source_state(of(recorded, 0)) != before


def test_what_is_still_recorded_elsewhere_is_not_drawn_from(tmp_path: Path):
    """Its keys are there before its tokens are."""
    small = {"layers": 1, "prompt_tokens": 12, "steps": 2}
    here = open_run(write_synthetic_run(tmp_path, comparison_id="here", **small))
    write_synthetic_run(tmp_path, comparison_id="ended", **small)
    write_synthetic_run(tmp_path, comparison_id="begun", status="running", worker_pid=os.getpid(), **small)
    assert [entry.comparison_id for entry in Sources(tmp_path, here, [here]).elsewhere()] == ["ended"]


def test_what_a_comparison_lacks_is_asked_of_it_once(tmp_path: Path):
    """And of every one that comes."""
    small = {"layers": 1, "prompt_tokens": 12, "steps": 2}
    here = open_run(write_synthetic_run(tmp_path, method="h2o", comparison_id="here", **small))
    write_synthetic_run(tmp_path, method="h2o", comparison_id="other", **small)
    asked: list[str] = []

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        assert sources.run is not None
        asked.append(sources.run.record.comparison_id)
        found = sources.run_of("keepkv")
        if found is None:
            return Needs("Nothing.")
        return (Drawn("one", go.Figure(), pd.DataFrame(), "", Provenance(found.path.name)),)

    exhibit = replace(exhibit_of("run"), slug="of-this-test", drawing=draw)
    for _ in range(3):
        assert isinstance(exhibit.draw(Sources(tmp_path, here, [here]), Choice(), "light"), Needs)
    assert asked == ["here", "other", "here", "here"]
    name = write_synthetic_run(tmp_path, method="keepkv", comparison_id="new", **small).name
    drawn = exhibit.draw(Sources(tmp_path, here, [here]), Choice(), "light")
    assert not isinstance(drawn, Needs)
    assert drawn[0].origin.source == name


def test_results_are_read_once_for_all_readers_and_again_when_a_file_is_new(tmp_path: Path):
    part(tmp_path, "a", key=["1"], score=[1.0])
    first = Sources(tmp_path).evaluations
    assert Sources(tmp_path).evaluations is first
    part(tmp_path, "b", key=["2"], score=[0.0])
    assert Sources(tmp_path).evaluations["key"].tolist() == ["1", "2"]
