"""What fills the atlas: one comparison a text with every method, small evaluations in one folder, benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.bench.request import BenchJob
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.forms.measurement_job import FOLDER, FillSize, fill_jobs
from kvlab.papers.registry import measurements_of
from kvlab.requests.compare import CompareRequest
from kvlab.tasks.shipped_samples import CHARACTERS, excerpts

pytestmark = pytest.mark.usefixtures("commands_here")
SMALL = FillSize(prompts=3, samples=2, lengths=(320,))


def test_everything_the_atlas_asks_for_becomes_work(tmp_path: Path):
    work = fill_jobs(measurements_of(tmp_path), SMALL)
    compared = [one for one in work if isinstance(one, CompareRequest)]
    assert len(compared) == 3
    assert len({one.prompt for one in compared}) == 3
    methods = {choice.method for choice in compared[0].choices}
    assert {"h2o", "less", "zsmerge", "kvmerger", "pyramid-pool", "keepkv", "cam", "d2o", "gvote"} <= methods
    assert all(one.choices == compared[0].choices for one in compared)
    evaluated = [one for one in work if isinstance(one, EvalJob)]
    assert {one.name for one in evaluated} == {FOLDER}
    assert {one.request.samples for one in evaluated} == {2, 6, 12, 18}  # small differences get several times as many
    assert {type(one) for one in work[:3]} == {CompareRequest}  # claims of recorded runs come first


def test_every_benchmark_of_the_atlas_becomes_a_job(tmp_path: Path):
    found = [job for job in fill_jobs(measurements_of(tmp_path), SMALL) if isinstance(job, BenchJob)]
    assert len({job.title for job in found}) == 4


def test_one_exhibit_is_filled_alone(tmp_path: Path):
    (first, *rest) = fill_jobs(measurements_of(tmp_path, ["keepkv/fig-3"]), SMALL)
    assert len(rest) == 2
    assert isinstance(first, CompareRequest)
    assert {choice.method for choice in first.choices} == {"cam", "d2o", "kvmerger", "keepkv", "h2o"}
    with pytest.raises(UserError, match="paper and number"):
        measurements_of(tmp_path, ["keepkv"])


def test_excerpts_differ_and_are_the_same_every_time():
    found = excerpts(6)
    assert found == excerpts(6)
    assert len({text for _, text in found}) == len({title for title, _ in found}) == 6
    assert all(CHARACTERS - 40 < len(text) <= CHARACTERS for _, text in found)
