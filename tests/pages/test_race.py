"""The texts of a comparison side by side: escaped, marked where they leave the full cache's, and with the outcome."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from app.queue.race import LONGEST_TEXT, as_passages, race_html
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.jobs import device_shares as worker_slots
from kvlab.jobs import queue_db
from kvlab.jobs.job_reporter import live_path, write_live
from kvlab.requests.compare import CompareRequest
from kvlab.requests.live_texts import LiveText, LiveTexts
from kvlab.trace import open_run
from kvlab.views.frames.outcome import own_texts
from tests.pages.test_job_panel import shown
from tests.pages.test_new_run import Open
from tests.synthetic.runs import write_synthetic_run

FULL = LiveText(label="full cache", method="full", state="ended", text="It is 48213.", tokens=4, held=1.0)
H2O = LiveText(
    label="h2o 20 %",
    method="h2o",
    state="writing",
    text="It <is> 4821",
    tokens=3,
    left_at=(3, 7),
    left_token=2,
    held=0.2,
)


def columns(*texts: LiveText) -> list[str]:
    return re.findall(r"<section.*?</section>", race_html(LiveTexts(texts=texts)), re.DOTALL)


def test_the_first_other_token_is_marked_and_everything_is_escaped():
    full, h2o = columns(FULL, H2O)
    assert "<mark" not in full and "4 tokens</small>" in full and "100 % of the cache" in full
    assert re.search(r"It <mark[^>]*>&lt;is&gt;</mark> 4821<b", h2o), "a caret stands where it writes"
    assert "writing, 3 tokens, differs from token 2" in h2o and "20 % of the cache" in h2o


@pytest.mark.parametrize(("token", "sign"), [("", "■"), (" ", "␣ "), ("\n", "␣\n")])
def test_a_token_that_cannot_be_seen_has_a_sign(token: str, sign: str):
    (column,) = columns(H2O.model_copy(update={"text": f"It{token}", "left_at": (2, 2 + len(token))}))
    assert f">{sign}</mark>" in column


def test_of_a_long_text_the_end_is_shown():
    long = H2O.model_copy(update={"text": "a" * 5 + "b" * LONGEST_TEXT, "left_at": (1, 2)})
    (column,) = columns(long)
    assert "… bbb" in column and "<mark" not in column and "aa" not in column.split("<p>")[1]


def test_a_slide_has_the_same_texts_with_the_same_token_marked():
    assert as_passages(LiveTexts(texts=(FULL, H2O))).passages == (
        ("full cache", (("same", "It is 48213."),)),
        ("h2o 20 %", (("same", "It "), ("own", "<is>"), ("same", " 4821"))),
    )


def test_a_run_that_has_not_begun_or_failed_says_so():
    waiting, failed = columns(LiveText(label="a", method="h2o"), LiveText(label="b", method="h2o", state="failed"))
    assert "waits for its turn" in waiting and "failed" in failed and "of the cache" not in waiting


def running(root: Path) -> str:
    choices = tuple(MethodChoice(method=method, budget=0.25) for method in ("h2o", "keepkv"))
    job = jobs.submit(root, CompareRequest(prompt="a prompt", choices=choices))
    with queue_db.database(root) as connection:
        worker_slots.take_slot(connection, os.getpid())
        queue_db.claim(connection, os.getpid())
    return job


def html(page) -> str:
    return "\n".join(element.proto.body for element in page.get("html"))


def test_a_running_job_shows_its_texts_and_a_damaged_file_shows_nothing(runs_root: Path, open_page: Open):
    job = running(runs_root)
    page = open_page("compare", job=job)
    assert "kv-race" not in html(page)
    write_live(runs_root, job, LiveTexts(title="2 of 3: a lamp", prompt_end="Which <number>?", texts=(FULL, H2O)))
    page = open_page("compare", job=job)
    assert "It is 48213." in html(page) and "&lt;is&gt;" in html(page)
    assert "**2 of 3: a lamp**: the prompt ends “… Which <number>?”" in shown(page)
    live_path(runs_root, job).write_text('{"texts": [{')
    page = open_page("compare", job=job)
    assert not page.exception and "kv-race" not in html(page)


def test_a_waiting_job_says_what_it_waits_for(runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch):
    running(runs_root)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 1.0, 1.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    job = jobs.submit(runs_root, CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),)))
    told = open_page("compare", job=job).get("progress")[0].proto.text.replace("\\", "")
    assert told == "Queued: next in the queue, after the job that runs now · machine busy: load 3 on 2 cores"


def test_an_ended_comparison_shows_its_outcome_and_texts_on_the_same_page(runs_root: Path, open_page: Open):
    job = running(runs_root)
    full = write_synthetic_run(runs_root, method="full", comparison_id=job, answer="no such words")
    paths = [full, *(write_synthetic_run(runs_root, method=name, comparison_id=job) for name in ("h2o", "keepkv"))]
    with queue_db.database(runs_root) as connection:
        connection.execute("UPDATE jobs SET state = 'complete', finished = ?", (time.time(),))
    page = open_page("compare", job=job)
    told = shown(page)
    assert "None of 2 compressed runs generates the expected answer “no such words”." in told
    assert "The full cache does not generate it" in told
    assert html(page).count("<section") == len(paths)
    assert "Compare the runs" in [button.label for button in page.button]


def test_recorded_texts_are_those_of_the_runs(made_runs: Path):
    runs = [open_run(made_runs / f"newer-{name}") for name in ("full-100pc-0", "keepkv-25pc-0")]
    full, keepkv = own_texts(runs).texts
    assert (full.text, keepkv.text) == tuple(run.record.free_text for run in runs)
    assert full.left_at is None and full.held == pytest.approx(1.0)
    own, forced = (runs[1].tokens[runs[1].tokens["phase"] == phase]["id"].tolist() for phase in ("free", "forced"))
    differing = [place for place, (one, two) in enumerate(zip(own, forced, strict=True), 1) if one != two]
    assert keepkv.left_token == (differing[0] if differing else 0)
