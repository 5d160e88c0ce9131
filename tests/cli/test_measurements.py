"""Command lines that exhibits show are parsed by the real commands into the job that their button queues."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvlab.atlas.fill import measurements_of
from kvlab.bench.presets import preset_requests
from kvlab.bench.request import BenchJob
from kvlab.cli import commands
from kvlab.cli.options import compare_request
from kvlab.evaluate import data_check
from kvlab.evaluate.request import EvalJob, EvalRequest
from kvlab.forms.measurement_job import job_of
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import (
    Benchmark,
    Evaluation,
    ExhibitFill,
    Measurement,
    RecordedComparison,
    command_line,
)

METHODS = ("h2o:preset=paper", "kvmerger:preset=paper:sigma_mode=1", "gvote")
EVALUATION = Evaluation(
    ("needle", "few_shot"), METHODS, (0.1, 64), 7, Path("runs/eval/x"), lengths=(512, 1024), depths=(0.05, 0.5),
    question_aware=False,
)  # fmt: skip
MEASUREMENTS = (
    RecordedComparison("needle_in_a_story", METHODS, (0.2, 64), Path("a folder"), "light"),
    EVALUATION,
    Evaluation(("all",), METHODS, (0.2,), 3, Path("runs/eval/tasks")),
    Benchmark("kvmerger-table2", Path("runs/bench"), device="cpu", scale=16, shorten=8),
)


pytestmark = pytest.mark.usefixtures("commands_here")


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Measurement], Any]:
    """The request, or requests, that the real command makes of a measurement's command line."""
    made: list[Any] = []
    check_tasks, checked = data_check.check_tasks, set[str]()

    def once(request: EvalRequest) -> None:
        """Whether its tasks can be made is the same whatever methods read them, and takes most of the time."""
        asked = request.model_copy(update={"choices": ()}).model_dump_json()
        if asked not in checked:
            checked.add(asked)
            check_tasks(request)

    def compare(methods: str, budgets: str, title: str, *_: object, **fields: Any) -> None:
        made.append(compare_request.make_request(methods, budgets, title=title, **fields))

    # `kvlab.cli` exports the commands under their modules' names.
    of_compare, of_eval, of_bench = (sys.modules[f"kvlab.cli.{name}"] for name in ("compare", "eval", "bench"))
    monkeypatch.setattr(of_compare, "execute", compare)
    monkeypatch.setattr(data_check, "check_tasks", once)
    monkeypatch.setattr(of_eval, "check_fits", lambda job, _: made.append(job.request))
    monkeypatch.setattr("kvlab.evaluate.harness.evaluate", lambda *_, **__: 1 / 0)  # nothing is measured
    monkeypatch.setattr(of_bench, "check_fits", lambda *_: None)
    monkeypatch.setattr(of_bench, "_measure_and_show", lambda requests, *_: made.append(requests))

    def run(measurement: Measurement) -> Any:
        CliRunner().invoke(commands, shlex.split(command_line(measurement))[1:])
        return made.pop()

    return run


def same(measurement: Measurement, parsed: Any) -> None:
    job = job_of(measurement)
    if isinstance(job, BenchJob):
        assert parsed == preset_requests(job.preset, **job.changes)
    elif isinstance(job, EvalJob):
        assert parsed == job.request
    else:
        assert isinstance(job, CompareRequest)
        left_out = {"title", "max_new_tokens", "choices"}  # a button takes the sample's own title and new tokens
        assert sorted(parsed.choices, key=repr) == sorted(job.choices, key=repr)
        assert parsed.model_dump(exclude=left_out) == job.model_dump(exclude=left_out)


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda one: one.arguments[0])
def test_a_command_line_is_parsed_into_the_same_request(
    measurement: Measurement, parse: Callable[[Measurement], Any]
) -> None:
    same(measurement, parse(measurement))


def test_every_exhibit_s_command_line_is_parsed_into_the_same_request(
    tmp_path: Path, parse: Callable[[Measurement], Any]
) -> None:
    for measurement in measurements_of(tmp_path):
        same(measurement, parse(measurement))


def test_command_lines_are_written_in_full(tmp_path: Path) -> None:
    assert command_line(EVALUATION) == (
        "kvlab eval --tasks needle,few_shot --methods h2o:preset=paper,kvmerger:preset=paper:sigma_mode=1,gvote "
        "--budgets 0.1,64 --samples 7 --lengths 512,1024 --depths 0.05,0.5 --question-aware no --out runs/eval/x"
    )
    assert command_line(ExhibitFill("keepkv/fig-3", tmp_path)) == (
        f"kvlab atlas fill --only keepkv/fig-3 --out {tmp_path}"
    )
