"""Evaluations, benchmarks and fits that are too big for a machine are refused before they start, everywhere."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from kvlab import jobs
from kvlab.bench.request import BenchJob, BenchRequest
from kvlab.cli import commands
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import EvalResult
from kvlab.evaluation.request import EvalJob, EvalRequest, FileChoice, SampleJob, TaskChoice
from kvlab.forms import plan_preview
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db, worker
from kvlab.jobs.size_check import prompt_lengths, refusal
from kvlab.jobs.work import Work
from kvlab.models.fitting.request import FitJob, FitRequest
from kvlab.models.info.names import context_length
from kvlab.models.info.size import find_model
from kvlab.planning.choices import Footprint, TaskEntry, TaskList
from kvlab.planning.plan import Machine
from tests import benchmark_files

GB = 10**9
SNAPKV = (MethodChoice(method="snapkv", budget=0.2),)
LISTED = TaskList(tasks=(TaskEntry(name="needle", lengths=(512, 1024)),), formats=())


def cpu(memory: float) -> Machine:
    return Machine("cpu", "cpu", int(memory), int(memory))


def gpu(memory: float) -> Machine:
    return Machine("cuda", "a card", int(memory), 10**13)


def evaluation(**fields: object) -> EvalJob:
    asked = {"tasks": (TaskChoice(task="needle"),), "choices": SNAPKV, "model": "shape:llama3-8b"} | fields
    return EvalJob(name="it", request=EvalRequest.model_validate(asked))


def bench(**fields: object) -> BenchJob:
    asked = {"mode": "decode", "model": "shape:llama3-8b", "choices": SNAPKV} | fields
    return BenchJob(name="it", requests=(BenchRequest.model_validate(asked),))


def said(work: Work, machine: Machine, longest: int = 4096) -> str:
    tasks = (TaskEntry(name="needle", lengths=(longest,)),)
    holds = Footprint()
    return refusal(work, machine, lambda _: lambda _: holds, TaskList(tasks=tasks, formats=()))


def least_memory(work: Work, longest: int, kind=cpu) -> float:
    """Bytes from which on the work is let through, by halving."""
    low, high = 0.0, 1e15
    while high - low > 1e6:
        middle = (low + high) / 2
        low, high = (low, middle) if not said(work, kind(middle), longest) else (middle, high)
    return high


def plain_bytes(tokens: int, number: int = 4) -> tuple[int, int]:
    """Weights, and the keys and values of so many tokens: 2 x layers x KV heads x width of a head."""
    model = find_model("shape:llama3-8b")
    return number * model.parameters, 2 * 32 * 8 * 128 * number * tokens


def close(least: float, expected: float) -> bool:
    """Up to the row of logits, positions of slots, and the halving's last step."""
    return expected < least < 1.01 * expected + 10**8


@pytest.mark.parametrize("longest", [1024, 7000])
def test_an_evaluation_holds_its_weights_and_the_largest_cache_of_its_longest_prompt(longest: int) -> None:
    weights, cache = plain_bytes(longest)
    assert close(least_memory(evaluation(), longest), weights + cache), "the full cache is measured too"
    assert "the largest part is weights" in said(evaluation(), cpu(weights), longest)


def test_a_batch_holds_its_prompts_many_times_and_the_weights_once() -> None:
    weights, cache = plain_bytes(4096)
    for rows in (1, 8):
        assert close(least_memory(evaluation(batch_rows=rows), 4096), weights + rows * cache)


def test_on_a_gpu_a_batch_is_halved_and_only_one_prompt_has_to_fit() -> None:
    assert least_memory(evaluation(batch_rows=8), 4096, gpu) == least_memory(evaluation(batch_rows=1), 4096, gpu)


def test_a_benchmark_takes_its_contexts_times_its_batches() -> None:
    weights, cache = plain_bytes(16384)
    for work, rows in ((bench(contexts=(1024, 16384)), 1), (bench(contexts=(16384,), batches=(1, 4)), 4)):
        assert close(least_memory(work, 1), weights + rows * cache)
    assert least_memory(bench(contexts=(16384,), scale=16), 1) < weights / 16


def test_on_a_gpu_a_benchmark_is_refused_where_no_method_fits() -> None:
    """There a method that runs out of memory becomes a row that says so; a dead worker on the host does not."""
    weights, cache = plain_bytes(131072, number=2)
    between = gpu(weights + 0.6 * cache + GB)  # a fifth of the cache fits, the whole does not
    work = bench(contexts=(131072,))
    assert said(work, between) == "" and said(work, gpu(weights))
    assert said(work, cpu(2 * weights + 1.2 * cache))


@pytest.mark.parametrize("method", ["kvzap", "less", "duoattention", "triattention"])
def test_a_fit_takes_its_window(method: str) -> None:
    work = FitJob(name="it", request=FitRequest(method=method, model="shape:llama3-8b", length=8192))
    weights, cache = plain_bytes(8192)
    assert close(least_memory(work, 1), weights + cache)


def test_the_longest_prompt_is_that_of_tasks_lengths_and_files(tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    file.write_text("x" * 400 + "\n" + "x" * 8000 + "\n")
    for fields, longest in (({}, 1024), ({"lengths": (64, 2048)}, 2048)):
        assert max(prompt_lengths(evaluation(**fields).request, LISTED)) == longest
    files = EvalRequest(files=(FileChoice(form="table", path=file),), choices=SNAPKV)
    assert max(prompt_lengths(files, LISTED)) == 2000


SMALL = EvalRequest(tasks=(TaskChoice(task="needle"),), choices=SNAPKV, samples=1, lengths=(256,))
WORKS = {
    "evaluate": EvalJob(name="it", request=SMALL),
    "sample": SampleJob(request=SMALL),
    "bench": BenchJob(name="it", requests=(BenchRequest(mode="decode", choices=SNAPKV),)),
    "fit": FitJob(name="it", request=FitRequest(method="kvzap", length=256)),
}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("kvlab.forms.plan_preview.this_machine", "kvlab.engine.out_of_memory.this_machine"):
        monkeypatch.setattr(place, lambda *_, **__: cpu(1e6))
    plan_preview._machine.cache_clear()


@pytest.mark.parametrize("kind", WORKS)
def test_the_browser_and_the_worker_refuse_it(
    kind: str, tmp_path: Path, little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvlab.planning.choices.methods", list)
    monkeypatch.setattr("kvlab.forms.plan_preview.task_list", lambda: LISTED)
    with pytest.raises(UserError, match=r"This needs about .* cpu has"):
        plan_preview.check_work(WORKS[kind])
    job_id = jobs.submit(tmp_path, WORKS[kind])  # as if there had been room when it was asked for
    with queue_db.database(tmp_path) as connection:
        worker_slots.take_slot(connection, worker.os.getpid())
        job = queue_db.claim(connection, worker.os.getpid())
        assert job is not None
        worker.run_job(connection, tmp_path, job, worker.COMPARE, threading.Event())
    ended = jobs.status(tmp_path, job_id)
    assert ended.state == "failed" and ended.message.startswith("This needs about")
    assert not [*(tmp_path / "eval").glob("*"), *(tmp_path / "bench").glob("*"), *(tmp_path / "fit").glob("*")]


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--out", "OUT", "--tasks", "needle", "--methods", "h2o", "--samples", "1", "--lengths", "256"],
        ["bench", "--out", "OUT", "--methods", "h2o", "--contexts", "64", "--repeats", "1", "--set", "steps=1"],
        ["eval", "--preset", "keepkv-table3", "--data", "FILES", "--out", "OUT", "--samples", "1"],
        ["lm-eval", "--tasks", "piqa", "--out", "OUT"],
        ["fit", "--method", "less", "--minutes", "0.001", "--out", "OUT/it.safetensors"],
        ["fit", "--method", "less", "--queue", "it", "--runs", "OUT"],
    ],
    ids=lambda command: " ".join(command[:1] + command[-2:-1]),
)
def test_the_command_line_refuses_it_and_says_how_to_start_all_the_same(
    command: list[str], tmp_path: Path, little_memory: None
) -> None:
    benchmark_files.write_lines(tmp_path / "files" / "xsum_3shot.jsonl", [benchmark_files.helm(0)])
    words = [word.replace("OUT", str(tmp_path / "out")).replace("FILES", str(tmp_path / "files")) for word in command]
    result = CliRunner().invoke(commands, words)
    assert isinstance(result.exception, UserError), result.output
    assert "This needs about" in str(result.exception) and "--force" in str(result.exception)
    assert not (tmp_path / "out").exists() or not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_an_evaluation_on_other_machines_is_not_held_to_this_ones_memory(
    tmp_path: Path, little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = EvalResult(pd.DataFrame(), ["measured elsewhere"])
    monkeypatch.setattr("kvlab.evaluation.shards.measure_on_ray", lambda *_: rows)
    monkeypatch.setattr("kvlab.cli.eval.print_summary", lambda *_: None)
    options = ["--tasks", "needle", "--methods", "h2o", "--samples", "1", "--lengths", "256", "--budgets", "0.2"]
    command = ["eval", "--out", str(tmp_path / "it"), *options]
    submitted = CliRunner().invoke(commands, [*command, "--on", "ray:parts=2"])
    assert submitted.exit_code == 0 and "measured elsewhere" in submitted.output, submitted.exception
    refused = CliRunner().invoke(commands, [*command, "--shard", "1/2"])
    assert isinstance(refused.exception, UserError) and "This needs about" in str(refused.exception)


def test_a_prompt_of_a_file_is_as_long_as_it_may_be(tmp_path: Path) -> None:
    """A quarter of its bytes as tokens, the model's window or what it is cut to: the least of the three."""
    (tmp_path / "it.jsonl").write_text("x" * 40_000 + "\n")
    asked = {"files": (FileChoice(form="table", path=tmp_path / "it.jsonl"),), "choices": SNAPKV}
    for model, cut, longest in (("shape:llama3-8b", None, 10_000), ("shape:llama3-8b", 600, 600), ("mini", 10**6, 0)):
        found = max(prompt_lengths(EvalRequest.model_validate(asked | {"model": model, "max_prompt": cut}), LISTED))
        assert found == (longest or context_length("mini"))
