"""The page Speed: what the form sends and what results show; and the atlas's buttons that queue what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.bench.rows import SCHEMA
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.forms.measurement_job import job_of
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import Benchmark, Evaluation, ExhibitFill, RecordedComparison
from tests.figures.test_quality import benchmark
from tests.pages.test_board_page import told

Open = Callable[..., AppTest]


@pytest.fixture
def measured(runs_root: Path) -> Path:
    folder = runs_root / "bench"
    folder.mkdir()
    frame = benchmark()[SCHEMA.names].assign(timestamp="2026-01-01T00:00:00+00:00")
    frame.to_parquet(folder / "first.parquet", index=False)
    assert pq.read_schema(folder / "first.parquet").names == SCHEMA.names
    return runs_root


def test_results_say_on_what_they_were_measured(measured: Path, open_page: Open):
    page = open_page("speed")
    text = told(page)
    assert "h2o 20 %, better than the full cache" in text
    place = "cpu: a processor · float32 · mini · batch 1 · 512 tokens"
    assert page.selectbox(key="load").value == place
    (chart,) = (element.proto.spec for element in page.get("plotly_chart"))
    assert "a processor" in chart


def test_the_form_sends_one_request_a_figure(measured: Path, open_page: Open, started_workers: list):
    page = open_page("new_run", ask="Timing", methods="H2O")
    page.text_input(key="contexts").set_value("256, 512")
    page.text_input(key="bench_name").set_value("tonight")
    page = page.run()
    assert "6 parts" in told(page)
    page.button(key="measure").click().run()
    (job,) = jobs.list_jobs(measured)
    request = jobs.request_of(measured, job.job_id)
    assert isinstance(request, BenchJob) and request.name == "tonight"
    assert [one.mode for one in request.requests] == ["decode", "prefill", "memory"]
    assert request.requests[0].contexts == (256, 512)
    assert request.requests[0].choices == (MethodChoice(method="h2o", budget=0.2),)
    assert started_workers
    assert not open_page("speed", job=job.job_id).exception


def test_the_atlas_queues_what_a_card_needs(runs_root: Path):
    """Each of the three kinds of measurement becomes the job that it is."""
    methods = ("h2o", "keepkv:preset=paper:sinks=7")
    compared = job_of(RecordedComparison("needle_in_a_story", methods, (0.2,), Path("x")))
    assert isinstance(compared, CompareRequest) and compared.level == "full" and compared.answer
    assert compared.choices[1] == MethodChoice(
        method="keepkv", budget=0.2, hyper_parameters={"preset": "paper", "sinks": 7}
    )
    tasks, out = ("needle", "key_value"), Path("x/eval/tab-1")
    evaluation = Evaluation(tasks, methods, (0.1, 64), 3, out, lengths=(512,), depths=(0.5,))
    evaluated = job_of(evaluation)
    assert isinstance(evaluated, EvalJob) and evaluated.name == "tab-1"
    asked = evaluated.request
    assert (asked.samples, asked.lengths, asked.depths, len(asked.choices)) == (3, (512,), (0.5,), 4)
    benched = job_of(Benchmark("keepkv-table1", Path("x/bench"), scale=16, shorten=16))
    assert isinstance(benched, BenchJob) and benched.changes == {"scale": 16, "shorten": 16}
    from_a_file = replace(evaluation, data=("ruler=x",), tasks=())
    of_a_model = job_of(replace(evaluation, model="some/model"))
    assert isinstance(of_a_model, EvalJob) and of_a_model.request.model == "some/model"
    for wrong in (ExhibitFill("keepkv/fig-3", Path("x")), from_a_file):
        with pytest.raises(UserError, match="terminal"):
            job_of(wrong)


def test_a_card_without_data_has_a_button_that_queues_its_measurement(runs_root: Path, open_page: Open):
    page = open_page("papers", paper="keepkv")
    buttons = {button.key: button for button in page.button if str(button.key).startswith("order-")}
    key = next(key for key in buttons if key != "order-all")
    buttons[key].click().run()
    assert len(jobs.list_jobs(runs_root)) == 1
