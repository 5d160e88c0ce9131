"""Command lines that exhibits show are parsed by the real commands into the job that their button queues."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvlab.bench.request import BenchJob, preset_requests
from kvlab.cli import commands
from kvlab.cli.atlas import atlas_tools
from kvlab.core.assets import asset_path
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation import data_check
from kvlab.evaluation.harness import without_refused
from kvlab.evaluation.request import EvalJob, EvalRequest, TaskChoice
from kvlab.forms.measurement_job import FillSize, fill_jobs, job_of
from kvlab.papers.exhibit import Choice, Needs
from kvlab.papers.registry import find, measurements_of
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import (
    Benchmark,
    Evaluation,
    ExhibitFill,
    Measurement,
    RecordedComparison,
    command_line,
    measurement_values,
    parse_measurement,
)
from kvlab.results.sources import Sources
from kvlab.trace.schema import ModelShape
from tests.synthetic.runs import write_synthetic_run

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


MINI_SHAPE = ModelShape(
    name="mini", family="llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    dtype="float32", parameters=0,
)  # fmt: skip


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
        made.append(of_compare.make_request(methods, budgets, title=title, **fields))

    of_compare, of_eval, of_bench = (import_module(f"kvlab.cli.{name}") for name in ("compare", "eval", "bench"))
    monkeypatch.setattr(of_compare, "execute", compare)
    monkeypatch.setattr(data_check, "check_tasks", once)
    monkeypatch.setattr(of_eval, "check_fits", lambda job: made.append(job.request))
    monkeypatch.setattr("kvlab.evaluation.harness.evaluate", lambda *_, **__: 1 / 0)  # nothing is measured
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models by name: mini, and copies of it in folders, one of them with a window of 1,024 tokens."""
    root = tmp_path_factory.mktemp("models")
    for name in ("another", "short"):
        shutil.copytree(asset_path("mini"), root / name)
    file = root / "short" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 1024}))
    return {"mini": "mini", "another": str(root / "another"), "short": str(root / "short")}


def on_model(measurement: Measurement, model: str) -> Measurement:
    return measurement if isinstance(measurement, Benchmark) else replace(measurement, model=model)


@pytest.mark.parametrize("model", ["mini", "another"])
@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda one: one.arguments[0])
def test_a_command_line_is_parsed_into_the_same_request(
    measurement: Measurement, model: str, parse: Callable[[Measurement], Any], folders: dict[str, str]
) -> None:
    measurement = on_model(measurement, folders[model])
    same(measurement, parse(measurement))


def test_every_exhibit_s_command_line_is_parsed_into_the_same_request(
    tmp_path: Path, parse: Callable[[Measurement], Any], folders: dict[str, str]
) -> None:
    """On a model that no command takes by itself."""
    for measurement in measurements_of(tmp_path, model=folders["another"]):
        same(measurement, parse(measurement))
        if not isinstance(measurement, Benchmark):
            job = job_of(measurement)
            assert isinstance(job, EvalJob | CompareRequest)
            assert (job.request if isinstance(job, EvalJob) else job).model == folders["another"]


def test_lengths_shrink_with_the_window_and_a_prompt_that_does_not_fit_is_one_sentence(
    tmp_path: Path, parse: Callable[[Measurement], Any], folders: dict[str, str]
) -> None:
    too_long = set()
    for measurement in measurements_of(tmp_path, model=folders["short"]):
        if isinstance(measurement, Evaluation):
            assert max(measurement.lengths, default=0) <= 1024
            same(measurement, parse(measurement))
        elif isinstance(measurement, RecordedComparison):
            with pytest.raises(UserError, match=r"context window of .*short is 1,024") as raised:
                job_of(measurement)
            too_long.add(str(raised.value))
    assert len(too_long) == 1
    (by_length,) = (one for one in measurements_of(tmp_path, ["gvote/fig-1"]) if isinstance(one, Evaluation))
    assert by_length.lengths == (512, 1024, 2048, 3584)


def test_a_benchmark_says_why_it_has_no_model(tmp_path: Path) -> None:
    for key in ("zsmerge/tab-1", "kvmerger/tab-2"):
        needs = find(*key.split("/")).draw(Sources(tmp_path, named="any"), Choice(), "light")
        assert isinstance(needs, Needs) and needs.measurement is not None
        assert "same for every model" in needs.sentence and "--model" not in command_line(needs.measurement)


def test_command_lines_are_written_in_full(tmp_path: Path) -> None:
    words = (
        "kvlab eval --tasks needle,few_shot --methods h2o:preset=paper,kvmerger:preset=paper:sigma_mode=1,gvote "
        "--budgets 0.1,64 --samples 7 --lengths 512,1024 --depths 0.05,0.5 --question-aware no"
    )
    assert command_line(EVALUATION) == f"{words} --out runs/eval/x"
    assert command_line(replace(EVALUATION, model="a/b")) == f"{words} --model a/b --out runs/eval/x"
    assert command_line(ExhibitFill("keepkv/fig-3", tmp_path)) == (
        f"python -m kvlab.cli.atlas fill --only keepkv/fig-3 --out {tmp_path}"
    )
    assert command_line(ExhibitFill("keepkv/fig-3", tmp_path, "a/b")) == (
        f"python -m kvlab.cli.atlas fill --only keepkv/fig-3 --model a/b --out {tmp_path}"
    )


@pytest.mark.parametrize("model", ["mini", "another"])
def test_fill_measures_the_model_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, folders: dict[str, str]
) -> None:
    """Also where the same texts were compared on another model."""
    ran: list[str] = []

    def compare(work: CompareRequest, root: Path) -> None:
        ran.append(work.model)

    write_synthetic_run(tmp_path, method="full", comparison_id="there", title="excerpt 1: alice")
    monkeypatch.setattr("kvlab.jobs.worker.load_function", lambda _: compare)
    fill = ExhibitFill("keepkv/fig-2a", tmp_path, folders[model])
    done = CliRunner().invoke(atlas_tools, [*fill.arguments, "--prompts", "2"])
    assert done.exit_code == 0, done.output
    assert ran == [folders[model]] * 2


@pytest.mark.parametrize("measurement", [*MEASUREMENTS, ExhibitFill("keepkv/fig-3", Path("runs"), "a/b")])
def test_a_measurement_reads_back_from_json(measurement: Measurement) -> None:
    assert parse_measurement(json.loads(json.dumps(measurement_values(measurement)))) == measurement


def test_a_dry_run_of_fill_counts_every_job_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.jobs.worker.load_function", lambda _: 1 / 0)
    (measurement,) = measurements_of(tmp_path, ["keepkv/fig-2b"])
    first = fill_jobs([measurement], FillSize(prompts=2))[0]
    assert isinstance(first, CompareRequest)
    for seed, _ in enumerate(first.runs):
        write_synthetic_run(tmp_path, comparison_id="there", title=first.title, model=MINI_SHAPE, seed=seed)
    only = ["--only", "keepkv/fig-2b,keepkv/tab-1", "--prompts", "2"]
    done = CliRunner().invoke(atlas_tools, ["fill", "--dry-run", *only, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 3 and lines[0] == f"1 of 3  {first.title}  is there"
    assert lines[1].endswith(f"  {len(first.runs)} runs")
    assert lines[2] == "3 of 3  Benchmark keepkv-table1  a benchmark"
    assert not list(tmp_path.glob("eval"))


def without_less(request: EvalRequest) -> tuple[EvalRequest, tuple[str, ...]]:
    able = tuple(choice for choice in request.choices if choice.method != "less")
    return request.model_copy(update={"choices": able}), ("less",) if able != request.choices else ()


def test_fill_goes_on_without_what_the_model_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that the model refuses, and a job that cannot run, are left out and named in the output."""
    ran: list[tuple[str, ...]] = []

    def run(work: EvalJob | CompareRequest, root: Path, **_: object) -> None:
        choices = (work.request if isinstance(work, EvalJob) else work).choices
        if any(choice.method in ("less", "gvote") for choice in choices):
            raise UserError("It was fitted to another model.")
        ran.append(tuple(choice.method for choice in choices))

    monkeypatch.setattr("kvlab.jobs.worker.load_function", lambda _: run)
    monkeypatch.setattr("kvlab.evaluation.harness.without_refused", without_less)
    done = CliRunner().invoke(atlas_tools, ["fill", "--only", "zsmerge/tab-2,gvote/fig-4", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert [sorted(set(methods)) for methods in ran] == [["h2o", "zsmerge"]]
    assert "Evaluation zsmerge-tab-2, without less, which the model refuses" in done.output
    assert "Evaluation gvote-fig-4 is left out: It was fitted to another model." in done.output
    assert "1 of 2 could not be measured." in done.output


def test_what_a_model_refuses_is_left_out_of_a_request() -> None:
    """A method whose weights are not the model's, and a task that the length cannot hold."""
    choices = (MethodChoice(method="less", hyper_parameters={"weights": "nowhere"}), MethodChoice(method="h2o"))
    able, refused = without_refused(CompareRequest(prompt="-", model="mini", choices=choices))
    assert refused == ("less",) and able.choices == choices[1:]
    tasks = (TaskChoice(task="needle"), TaskChoice(task="ruler_cwe"))
    request = EvalRequest(model="mini", tasks=tasks, choices=choices, samples=1, lengths=(96,))
    kept, refused = without_refused(request)
    assert refused == ("less", "ruler_cwe") and (kept.choices, kept.tasks) == (choices[1:], tasks[:1])
    assert without_refused(kept) == (kept, ())
    none = request.model_copy(update={"choices": choices[:1]})
    assert without_refused(none) == (none, ()), "nothing would be left"
