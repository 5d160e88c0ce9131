"""Evaluations and benchmarks through the queue: real ones, tiny, by the worker's own loop in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab import jobs
from kvlab.bench.request import BenchJob, make_request
from kvlab.bench.rows import read_rows
from kvlab.core.choice import MethodChoice
from kvlab.evaluation.job import comparison_of
from kvlab.evaluation.request import EvalJob, EvalRequest, SampleJob, TaskChoice
from kvlab.evaluation.results.rows import read_results
from kvlab.jobs.job_reporter import JobReporter
from kvlab.jobs.work import read_request
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import Progress
from kvlab.tasks.registry import get_task
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_runs
from tests.jobs.by_hand import cancelled_after, work_off

H2O = MethodChoice(method="h2o", budget=0.3)


def evaluation(model: Path, samples: int = 3) -> EvalRequest:
    return EvalRequest(
        model=str(model), device="cpu", tasks=(TaskChoice(task="needle"),), choices=(H2O,), lengths=(120,),
        samples=samples,
    )  # fmt: skip


def test_every_kind_is_read_back_as_it_was_written(tmp_path: Path):
    asked = EvalRequest(tasks=(TaskChoice(task="needle"),))
    bench = BenchJob(name="b", requests=(make_request(mode="decode"),))
    for work in (EvalJob(name="a", request=asked), SampleJob(request=asked), bench):
        assert read_request(work.model_dump_json()) == work
        assert jobs.request_of(tmp_path, jobs.submit(tmp_path, work)) == work


@pytest.mark.parametrize("name", ["../x", ".hidden", "", "a/b", "x" * 101])
def test_results_stay_in_the_folder_of_runs(name: str):
    with pytest.raises(ValueError, match="name"):
        EvalJob(name=name, request=EvalRequest())


def test_an_evaluation_is_cancelled_goes_on_and_ends_as_if_never_stopped(
    tmp_path: Path,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    job = EvalJob(name="mine", request=evaluation(tiny_folder))
    first = jobs.submit(tmp_path, job)
    heard: list[Progress] = []
    report, root = JobReporter.report, tmp_path

    def listen(self: JobReporter, progress: Progress) -> None:
        heard.append(progress)
        report(self, progress)
        if progress.done == 3:  # one prompt whole, and the full cache's row of the second
            jobs.cancel(root, first)
            self._checked = 0.0

    monkeypatch.setattr(JobReporter, "report", listen)
    work_off(tmp_path)
    ended = jobs.status(tmp_path, first)
    assert (ended.state, ended.message) == ("cancelled", "Cancelled; what was saved is kept.")
    assert len(read_results(tmp_path / "eval" / "mine")) == 4, "all rows of the second prompt were measured together"
    assert heard[-1].stage.startswith("2 of 3 prompts · about ")
    again = jobs.submit(tmp_path, job)
    work_off(tmp_path)
    assert jobs.status(tmp_path, again).state == "complete"
    cut = read_results(tmp_path / "eval" / "mine")
    whole = jobs.submit(tmp_path, job.model_copy(update={"name": "whole"}))
    work_off(tmp_path)
    assert jobs.status(tmp_path, whole).state == "complete"
    columns = ["key", "score", "prediction", "slots", "live_bytes"]
    uncut = read_results(tmp_path / "eval" / "whole")[columns].sort_values("key", ignore_index=True)
    assert cut[columns].sort_values("key", ignore_index=True).equals(uncut)
    assert len(uncut) == 6


def test_a_task_that_is_not_there_ends_the_job_with_one_sentence(tmp_path: Path, tiny_folder: Path):
    asked = evaluation(tiny_folder).model_copy(update={"tasks": (TaskChoice(task="nope"),)})
    job = jobs.submit(tmp_path, EvalJob(name="mine", request=asked))
    work_off(tmp_path)
    ended = jobs.status(tmp_path, job)
    assert ended.state == "failed"
    assert ended.message.startswith("There is no task called 'nope'")


def test_a_prompt_of_an_evaluation_becomes_a_recorded_comparison(tmp_path: Path, tiny_folder: Path):
    job = jobs.submit(tmp_path, SampleJob(request=evaluation(tiny_folder, samples=2), title="needle 1"))
    work_off(tmp_path)
    assert jobs.status(tmp_path, job).state == "complete", jobs.status(tmp_path, job).message
    runs = {entry.method: open_run(tmp_path / entry.run_id) for entry in list_runs(tmp_path, comparison_id=job)}
    assert set(runs) == {"full", "h2o"}
    record = runs["h2o"].record
    (start, stop), *_ = record.facts
    assert record.answer and record.answer in record.prompt[start:stop]


def test_rules_of_a_recorded_prompt_are_the_system_prompt_of_a_chat(tiny: LoadedModel):
    sample = get_task("instructions").generate(tiny.tokenizer, 400, 0, 0)
    job = SampleJob(request=EvalRequest(model="tiny", system="Be short."))
    chat, plain = comparison_of(job, sample, has_chat=True), comparison_of(job, sample)
    assert chat.system == f"Be short.\n{sample.system}" and plain.system == "Be short."
    assert plain.prompt == sample.context + sample.question == f"{sample.system}\n\n{chat.prompt}"
    assert chat.answer is plain.answer is None, "a rule is no answer"
    assert len(plain.facts) == 4 and not chat.facts


def test_a_benchmark_keeps_whole_parts_and_measures_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from kvlab.bench import device

    monkeypatch.setattr(device, "COPY_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(device, "MATRIX_SIDE", {"cpu": 64})
    asked = make_request(
        mode="decode", model="shape:tiny", device="cpu", contexts=(64, 96), repeats=2, steps=2, warmup=1,
        choices=(H2O,),
    )  # fmt: skip
    job = BenchJob(name="quick", requests=(asked,))
    first = jobs.submit(tmp_path, job)
    with cancelled_after(1, tmp_path, first):
        work_off(tmp_path)
    assert jobs.status(tmp_path, first).state == "cancelled"
    kept = read_rows(tmp_path / "bench" / "quick.parquet")
    assert {row.asked_context for row in kept if row.figure == "decode rate"} == {64}
    again = jobs.submit(tmp_path, job)
    work_off(tmp_path)
    assert jobs.status(tmp_path, again).state == "complete", jobs.status(tmp_path, again).message
    rows = read_rows(tmp_path / "bench" / "quick.parquet")
    assert rows[: len(kept)] == kept
    rates = [(row.method, row.asked_context) for row in rows if row.figure == "decode rate"]
    assert len(rates) == len(set(rates)) and {context for _, context in rates} == {64, 96}
