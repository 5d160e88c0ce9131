"""The page that says what would have kept the answer, and the way there from the board."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.core.restore import Restore
from kvlab.jobs.work import rerun_with_restored
from kvlab.requests.compare import RestoreRequest
from kvlab.trace import Run, open_run
from kvlab.trace.restore_results import RestoreResult, SearchResult, result_path, save_result
from tests.pages.test_board_page import add_answer, own_words, told
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


@pytest.fixture
def run(runs_root: Path) -> Run:
    write_synthetic_run(runs_root, method="full")
    return open_run(write_synthetic_run(runs_root, method="h2o", budget=0.2))


def looked_into(root: Path, run: Run) -> RestoreResult:
    """As a search writes it."""
    common = {"complete": True, "tried": 3, "attention": (0.5, 0.25)}
    found = (
        SearchResult(search="tokens", returned=Restore(tokens=(30, 31)), restores=True, slots=16, kl=(0.1, 0.2),
              text="7", **common),
        SearchResult(search="reading heads", returned=Restore(tokens=(30, 31), heads=((0, 1),)), restores=True, slots=2,
              kl=(0.2, 0.2), text="the answer 7", **common),
        SearchResult(search="heads", returned=Restore(kind="heads", heads=((1, 0),)), restores=False, slots=90,
              **common),
    )  # fmt: skip
    result = RestoreResult(
        run_id=run.record.run_id,
        comparison_id=run.record.comparison_id,
        label=run.record.label,
        answer="7",
        expected=True,
        reruns=9,
        most_reruns=40,
        seconds=1.0,
        fact=(30, 31, 32),
        reference=("the", " answer"),
        reader=(0, 1),
        slots=200,
        text_before="<b>wrong</b>",
        kl_before=(1.0, 2.0),
        tokens=(30, 31),
        attention_full=(0.6, 0.3),
        attention_before=(0.0, 0.1),
        found=found,
    )
    save_result(root, result)
    return result


def test_one_click_on_the_board_starts_the_search_and_lands_there(run: Run, runs_root: Path, open_page: Open):
    page = add_answer(open_page("compare"), own_words(runs_root / run.record.run_id))
    buttons = [button for button in page.button if str(button.key).startswith("restore-")]
    wrong = [button for button in buttons if run.record.run_id in str(button.key)]
    assert [button.label for button in wrong] == ["Restore the answer"]
    wrong[0].click().run()
    (job,) = jobs.list_jobs(runs_root)
    assert jobs.request_of(runs_root, job.job_id) == RestoreRequest(
        run_id=run.record.run_id, title=f"Restore the answer: {run.record.label}"
    )


def test_before_anybody_looked_it_says_how_long_it_takes(run: Run, runs_root: Path, open_page: Open):
    page = open_page("restore", run=run.record.run_id)
    assert "is not searched yet: it takes" in told(page) and "at most 40 reruns" in told(page)
    assert "The full cache writes" in told(page) and "h2o 20 % writes" in told(page)
    assert any(run.record.free_text.split()[-1] in element.proto.body for element in page.get("html"))
    next(button for button in page.button if button.key == "ask-restore").click().run()
    assert len(jobs.list_jobs(runs_root)) == 1


def test_the_sentence_names_the_cheapest_and_a_link_shows_another(run: Run, runs_root: Path, open_page: Open):
    result = looked_into(runs_root, run)
    text = told(open_page("restore", run=run.record.run_id))
    assert "keeping these 2 tokens in 1 head restores the answer, costing 2 slots" in text
    assert "With what was restored, the predictions are closer to the full cache's." in text
    assert "Restored means that the run generates “7”, the expected answer. 9 reruns." in text
    page = open_page("restore", run=run.record.run_id, given="tokens")
    table = page.dataframe[0].value
    assert table["extra slots"].tolist() == [found.slots for found in result.found]
    markup = "".join(str(element.proto.body) for element in page.get("html"))
    assert "<b>wrong" not in markup and "&lt;b&gt;wrong" in markup


def test_a_recorded_run_of_the_result_is_named_by_what_differs(run: Run, runs_root: Path, open_page: Open):
    looked_into(runs_root, run)
    page = open_page("restore", run=run.record.run_id)
    next(button for button in page.button if button.key == "record-restored").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    labels = [choice.label for choice in request.choices]
    assert labels == [run.record.label, f"{run.record.label} + tokens 30-31 in layer 0 head 1"]
    assert request == rerun_with_restored(run.record, Restore(tokens=(30, 31), heads=((0, 1),)))


def test_a_search_that_failed_says_why_and_the_queue_shows_where_its_result_is(
    run: Run, runs_root: Path, open_page: Open
):
    job = jobs.submit(runs_root, RestoreRequest(run_id=run.record.run_id, title="Restore the answer"))
    page = open_page("restore", run=run.record.run_id, search=job)
    assert not page.exception
    assert any(button.key == "stop-search" for button in page.button)
    assert not open_page("new_run", job=job).exception


def test_a_damaged_file_is_one_sentence_and_the_page_offers_to_look_again(run: Run, runs_root: Path, open_page: Open):
    looked_into(runs_root, run)
    result_path(runs_root, run.record.comparison_id, run.record.run_id).write_text("{")
    text = told(open_page("restore", run=run.record.run_id))
    assert "is damaged: remove it" in text and "is not searched yet: it takes" in text


def failing(root: Path, open_page: Open) -> AppTest:
    """The board of the fixture's comparison, asked for words that only the full cache writes."""
    full = next(path for path in root.iterdir() if "full" in path.name)
    return add_answer(open_page("compare"), own_words(full))


def all_button(page: AppTest) -> list[str]:
    return [button.label for button in page.button if button.key == "search-all"]


def test_one_click_queues_a_search_for_every_failed_run_once(run: Run, runs_root: Path, open_page: Open):
    write_synthetic_run(runs_root, method="keepkv", budget=0.2)
    page = failing(runs_root, open_page)
    assert all_button(page) == ["Restore the answer of all 2 failed runs"]
    page = next(button for button in page.button if button.key == "search-all").click().run()
    assert not page.exception
    requests = [jobs.request_of(runs_root, job.job_id) for job in jobs.list_jobs(runs_root)]
    assert {request.run_id for request in requests} == {
        path.name for path in runs_root.iterdir() if "h2o" in path.name or "keepkv" in path.name
    }
    assert len(requests) == 2
    assert all_button(page) == [], "no run is searched twice"
    assert "2 searches are in the queue" in told(page)


def test_a_result_is_on_the_board_at_the_next_visit(run: Run, runs_root: Path, open_page: Open):
    write_synthetic_run(runs_root, method="keepkv", budget=0.2)
    assert "What restores the answer**" not in told(failing(runs_root, open_page))
    looked_into(runs_root, run)
    page = open_page("compare")
    text = told(page)
    assert "**What restores the answer**" in text
    assert "keeping these 2 tokens in 1 head restores the answer, costing 2 slots" in text
    assert all_button(page) == ["Restore the answer of the failed run"], "keepkv's"
    figures = [json.loads(chart.proto.spec) for chart in page.get("plotly_chart")]
    words = [note["text"] for figure in figures for note in figure["layout"].get("annotations", [])]
    assert words.count("restored by 2 slots in layer 0 head 1") == 1


def test_a_damaged_result_is_a_sentence_on_the_board(run: Run, runs_root: Path, open_page: Open):
    failing(runs_root, open_page)
    looked_into(runs_root, run)
    result_path(runs_root, run.record.comparison_id, run.record.run_id).write_text("{")
    assert "is damaged: remove it" in told(open_page("compare"))
