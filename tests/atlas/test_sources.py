"""What an exhibit can be drawn from: results of evaluations and benchmarks, as they lie in the folder of runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvlab.atlas.benchmarks import bench_origin
from kvlab.atlas.sources import Sources


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
    assert bench_origin(rows) == (
        "benchmark first · cpu · float32 · 1/16 of the layers and width, 1/8 of the tokens · medians of 3 repeats · "
        "kvlab 0.1.0, torch 2.13.0"
    )
    assert bench_origin(rows.assign(scale=1, shorten=1, versions="")).endswith("· full size · medians of 3 repeats")
