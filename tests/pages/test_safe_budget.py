"""The page Safe budget: the answer with its guarantee, the prompts that change, and the evaluation that it queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import plain
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.evaluation.request import EvalJob, EvalRequest, SampleJob
from kvlab.evaluation.results.rows import ROWS
from kvlab.results.risk import export
from kvlab.results.risk.safe_budget import safe_budget
from tests.pages.test_board_page import told
from tests.results.risk_rows import rows_of

Open = Callable[..., AppTest]
WRONG = {"h2o": [0, 20, 60], "snapkv": [0, 1, 60]}


@pytest.fixture(autouse=True)
def nothing_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows of mini but those a test writes; reading the shipped ones takes seconds."""
    monkeypatch.setattr("app.evaluation.quality_form.shipped_rows", pd.DataFrame)


def written(root: Path, rows: pd.DataFrame, name: str = "mine") -> None:
    """The rows as an evaluation's folder."""
    folder = root / "eval" / name
    folder.mkdir(parents=True)
    values = [{key: None if pd.isna(value) else value for key, value in row.items()} for row in rows.to_dict("records")]
    pq.write_table(pa.Table.from_pylist(values, schema=ROWS), folder / "part-000000.parquet")


def test_the_answer_the_prompts_and_the_flips_are_shown(runs_root: Path, open_page: Open) -> None:
    written(runs_root, rows_of(WRONG, 150, full_wrong=5).assign(answer='["7"]'))
    page = open_page("safe_budget", tolerance="5")
    assert not page.exception
    (answer,) = page.success
    assert plain("snapkv at 50 % is safe (the fewest bytes of 2 methods): with 95 % confidence") in answer.value
    text = told(page)
    assert "h2o: safe at 90 %. Not certified at 50 %: 20 of 150 here" in text
    assert "right on 145 of 150 prompts" in text
    tables = [frame.value for frame in page.dataframe]
    risks, shown, flips, pairs = tables
    assert risks["changed"].tolist() == [0, 20, 60, 0, 1, 60]
    assert risks["risk %"].tolist() == [0, 13.3, 40, 0, 0.667, 40], "three digits, as in the sentences"
    assert set(shown["answer"]) == {"7"}
    assert set(shown["method"]) == {"h2o"} or set(shown["method"]) == {"snapkv"}
    assert flips["right to wrong"].tolist() == [0, 20, 60, 0, 1, 60]
    assert pairs["in common %"].tolist()[1:] == [5, 100]
    page = page.selectbox(key="changed_arm").set_value("snapkv").run()
    page = page.selectbox(key="changed_at").set_value("50 %").run()
    assert page.dataframe[1].value["prompt"].tolist() == [1]
    page.button(key="record_changed").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, SampleJob)
    assert request.request.choices == (MethodChoice(method="snapkv", budget=0.5),)
    assert request.request.samples == 1


def test_what_cannot_be_certified_is_one_sentence(runs_root: Path, open_page: Open) -> None:
    written(runs_root, rows_of(WRONG, 150))
    page = open_page("safe_budget", tolerance="0.5")
    assert not page.exception and not page.success
    assert [box.value for box in page.warning] == [
        plain(
            "At least 736 prompts are needed to certify 0.5 % with 95 % confidence for 2 methods and groups, even if "
            "none changes; there are 150: give more prompts, or accept a larger tolerance."
        )
    ]
    assert any(plain("150 prompts can certify 3 %, if none changes.") in line.value for line in page.caption)
    risks = page.dataframe[0].value
    assert risks["changed"].tolist() == [0, 20, 60, 0, 1, 60] and not risks["safe"].any()
    assert page.get("plotly_chart"), "the counts are drawn even where nothing is certified"


@pytest.mark.parametrize(("count", "proposed"), [(150, 3.0), (183, 2.0), (32, 15.0), (5, 60.0)])
def test_the_proposed_tolerance_is_the_smallest_that_so_many_prompts_allow(
    runs_root: Path, open_page: Open, count: int, proposed: float
) -> None:
    """With n prompts, none changed, and two methods at 97.5 % each, (1 - tolerance)^n must be at most .025."""
    assert (1 - proposed / 100) ** count <= 0.025
    written(runs_root, rows_of({"h2o": [0, 0, 1], "snapkv": [0, 0, 1]}, count))
    page = open_page("safe_budget")
    assert not page.exception and not page.warning and page.success
    assert page.number_input(key="tolerance").value == proposed


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize(("samples", "certifies"), [(32, "10 %"), (400, "")])
def test_the_form_says_before_it_runs_what_so_many_prompts_can_certify(
    runs_root: Path, open_page: Open, samples: int, certifies: str
) -> None:
    page = open_page("new_run", ask="A guarantee", methods="H2O", samples=str(samples))
    assert not page.exception
    warned = [box.value for box in page.warning if "they can certify" in box.value]
    assert bool(warned) == bool(certifies)
    if warned:
        assert plain("32 prompts and 1 method:") in warned[0] and plain(f"at most {certifies} of prompts") in warned[0]
        assert plain("2 % takes 149, 10 % takes 29") in warned[0]


def test_prompts_without_answers_are_compared_by_text(runs_root: Path, open_page: Open) -> None:
    written(runs_root, rows_of(WRONG, 150).assign(metric="unscored", score=None))
    page = open_page("safe_budget", tolerance="5")
    assert not page.exception
    (answer,) = page.success
    assert plain("get another text than from the full cache") in answer.value


def test_quality_sends_an_evaluation_without_scores_to_this_page(runs_root: Path, open_page: Open) -> None:
    written(runs_root, rows_of(WRONG, 5).assign(metric="unscored", score=None))
    job = jobs.submit(runs_root, EvalJob(name="mine", request=EvalRequest(model="mini")), "somebody")
    jobs.cancel(runs_root, job)
    page = open_page("quality", job=job)
    assert not page.exception
    assert any("have no answers, so they have no scores" in box.value for box in page.info)


def test_nothing_is_certified_while_it_is_measured(runs_root: Path, open_page: Open) -> None:
    written(runs_root, rows_of(WRONG, 150))
    job = jobs.submit(runs_root, EvalJob(name="mine", request=EvalRequest(model="mini")), "somebody")
    page = open_page("safe_budget", tolerance="5")
    assert not page.exception and not page.success
    assert any("is being measured" in box.value for box in page.info)
    jobs.cancel(runs_root, job)
    assert open_page("safe_budget", tolerance="5").success


@pytest.mark.usefixtures("commands_here")
def test_the_form_queues_a_ladder_and_kl_where_it_is_asked_for(
    runs_root: Path, open_page: Open, started_workers: list
) -> None:
    page = open_page("new_run", ask="A guarantee", methods="H2O")
    assert not page.exception
    page.text_input(key="eval_name").set_value("ladder")
    page = page.toggle(key="eval_forced").set_value(True).run()
    page.button(key="evaluate").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, EvalJob) and request.request.forced
    budgets = [choice.budget for choice in request.request.choices]
    assert budgets == sorted(budgets, reverse=True) and (budgets[0], budgets[-1]) == (0.9, 0.05)
    assert request.request.samples == 200 and started_workers


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_shows_what_is_certified(theme: str) -> None:
    safe = safe_budget(rows_of(WRONG, 150), tolerance=0.05)
    figure = export.draw_risk(export.risk_table(safe), theme)
    drawn = {trace.name: trace for trace in figure.data}
    assert list(figure.layout.xaxis.categoryarray) == ["20 %", "50 %", "90 %"]
    filled = {name: [not symbol.endswith("-open") for symbol in trace.marker.symbol] for name, trace in drawn.items()}
    assert filled == {"h2o": [False, False, True], "snapkv": [False, True, True]}
    top = figure.layout.yaxis.range[1]
    assert top > 4 * 0.05 and top < 1, "the tolerance can be seen"
    assert "Smallest safe budget: h2o 90 %, snapkv 50 %." in export.describe_risk(export.risk_table(safe))
