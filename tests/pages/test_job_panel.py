"""How a job is doing: its place, stage, log and end, each in a sentence."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.requests.compare import CompareRequest, Progress
from tests.pages.test_new_run import NASTY, Open, messages
from tests.synthetic.runs import write_synthetic_run


def a_job(root: Path, prompt: str = NASTY) -> str:
    return jobs.submit(root, CompareRequest(prompt=prompt, choices=(MethodChoice(method="h2o"),)))


def shown(page: AppTest) -> str:
    assert not page.exception
    found = [*page.markdown, *page.caption, *page.code, *page.text, *page.info]
    return "\n".join(str(element.value) for element in found).replace("\\", "")


def test_a_waiting_job_shows_its_place_and_can_be_cancelled_by_another_session(runs_root: Path, open_page: Open):
    first, second = a_job(runs_root), a_job(runs_root, "another")
    pages = [open_page("compare", job=job) for job in (first, second)]
    assert all("Queued" in shown(page) for page in pages)
    reopened = open_page("compare", job=first)
    next(button for button in reopened.button if button.label == "Cancel").click().run()
    assert jobs.status(runs_root, first).state == "cancelled"
    assert "Cancelled" in shown(open_page("compare", job=first))
    assert jobs.status(runs_root, second).position == 1
    assert "Queued" in shown(pages[1].run())


def test_a_running_job_shows_its_stage_and_log(runs_root: Path, open_page: Open):
    job = a_job(runs_root)
    with queue_db.database(runs_root) as connection:
        worker_slots.take_slot(connection, os.getpid())
        queue_db.claim(connection, os.getpid())
        progress = Progress(stage="prefill h2o", done=1, total=4)
        connection.execute("UPDATE jobs SET progress = ?", (progress.model_dump_json(),))
    queue_db.log_path(runs_root, job).write_text("a line <b>of</b> the log\n")
    page = open_page("compare", job=job)
    assert "Running" in shown(page)
    assert "prefill h2o" in page.get("progress")[0].proto.text
    assert "a line <b>of</b> the log" in [element.value for element in page.code]


def test_progress_tells_the_run_the_time_left_and_what_waits(runs_root: Path, open_page: Open):
    choices = tuple(MethodChoice(method=method, budget=0.25) for method in ("h2o", "keepkv"))
    job = jobs.submit(runs_root, CompareRequest(prompt="a prompt", choices=choices))
    write_synthetic_run(runs_root, method="full", comparison_id=job)
    write_synthetic_run(runs_root, method="h2o", comparison_id=job, status="running")
    with queue_db.database(runs_root) as connection:
        worker_slots.take_slot(connection, os.getpid())
        queue_db.claim(connection, os.getpid())
        progress = Progress(stage="h2o", done=1, total=4, expected_end=time.time() + 600)
        connection.execute("UPDATE jobs SET progress = ?, started = ?", (progress.model_dump_json(), time.time() - 200))
    page = open_page("compare", job=job)
    told = page.get("progress")[0].proto.text.replace("\\", "")
    assert "2 of 3" in told, "the full cache is a run too"
    assert "about 10 min left" in told, "by the estimate of the run, not by the share that is done"
    assert "keepkv" in [element.value for element in page.markdown], "it waits"
    assert not any("Not started" in element.value for element in page.caption)
    with queue_db.database(runs_root) as connection:
        queue_db.finish(connection, job, "cancelled", "Stopped.")
    assert any("Not started: keepkv" in element.value for element in open_page("compare", job=job).caption)


def test_an_ended_job_lists_its_runs_and_leads_to_the_comparison(runs_root: Path, open_page: Open):
    job = a_job(runs_root)
    run = write_synthetic_run(runs_root, method="h2o", comparison_id=job)
    with queue_db.database(runs_root) as connection:
        connection.execute(
            "UPDATE jobs SET state = 'complete', started = ?, finished = ?, run_ids = ?",
            (time.time() - 9, time.time(), f'["{run.name}"]'),
        )
    page = open_page("compare", job=job)
    assert "Complete" in shown(page)
    assert "Compare the runs" in [button.label for button in page.button]


@pytest.mark.parametrize(("state", "message"), [("failed", "There is no <b>model</b> x."), ("cancelled", "Stopped.")])
def test_how_a_job_ended_is_one_sentence(runs_root: Path, open_page: Open, state: str, message: str):
    job = a_job(runs_root)
    with queue_db.database(runs_root) as connection:
        queue_db.finish(connection, job, state, message)
    page = open_page("compare", job=job)
    assert message in messages(page) + [element.value.replace("\\", "") for element in page.info]


def test_an_unknown_job_is_one_sentence(runs_root: Path, open_page: Open):
    (found,) = messages(open_page("compare", job="nope"))
    assert found.startswith("There is no job nope in")
