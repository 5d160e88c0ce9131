"""The start page says what kvlab is, queues the sample, and lists what ran."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from app.base.text import plain
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.library.find import list_all
from kvlab.requests.compare import CompareRequest
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace.index import FILE
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
PATIENCE_SECONDS = 60


def texts(page: AppTest) -> str:
    return "\n".join(str(element.value) for element in [*page.title, *page.markdown, *page.caption, *page.error])


def press(page: AppTest, label: str) -> AppTest:
    return next(button for button in page.button if button.label == label).click().run()


def test_it_says_what_kvlab_is_before_anything_ran(runs_root: Path, open_page: Open):
    page = open_page("start")
    assert not page.exception
    assert page.title[0].value == "See what KV-cache compression does to tokens"
    for word in ("**Run**", "**Watch**", "**Check**", "There is no finished comparison yet"):
        assert word in texts(page)


def test_the_sample_prompt_is_queued_and_its_progress_is_shown(
    runs_root: Path, open_page: Open, started_workers: list[Path]
):
    page = press(open_page("start"), "Try the sample prompt")
    assert not page.exception
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert request.prompt in [sample.text for sample in shipped_samples()]
    assert [choice.method for choice in request.choices] == ["full", "h2o", "keepkv"]
    assert page.query_params["job"] == [job.job_id] or page.query_params["job"] == job.job_id
    assert page.title[0].value == "Result"
    assert runs_root in started_workers


def test_my_own_prompt_is_pasted(runs_root: Path, open_page: Open):
    page = press(open_page("start"), "Use my own prompt")
    assert not page.exception and page.title[0].value == "New"
    assert page.segmented_control(key="source").value == "Paste"
    assert page.text_area(key="pasted").value == ""


def test_recent_comparisons_say_how_they_ended(synthetic_runs: Path, open_page: Open):
    write_synthetic_run(synthetic_runs, method="h2o", comparison_id="third", status="failed")
    page = open_page("start")
    assert not page.exception
    shown = texts(page)
    for expected in ("the older one", "the newer one", "Failed", "Complete", "full, h2o, keepkv", "64 tokens"):
        assert expected in shown


def test_jobs_that_wait_and_jobs_that_failed_early_are_listed(runs_root: Path, open_page: Open):
    request = CompareRequest(prompt="a waiting prompt", choices=(MethodChoice(method="h2o"),))
    jobs.submit(runs_root, request)
    page = open_page("start")
    assert "a waiting prompt" in texts(page)
    assert "place 1 in the queue" in texts(page)


def test_a_prompt_with_markup_is_shown_as_text(runs_root: Path, open_page: Open):
    write_synthetic_run(runs_root, title="<script>alert(1)</script> **bold** [x](http://y.z)")
    page = open_page("start")
    assert r"\<script\>alert\(1\)\</script\> \*\*bold\*\* \[x\]\(http\://y\.z\)" in texts(page)


def test_a_folder_that_was_copied_in_is_listed_at_once_and_after_reading_again(
    synthetic_runs: Path, tmp_path: Path, open_page: Open
):
    copied = write_synthetic_run(tmp_path / "elsewhere", title="copied by hand")
    shutil.copytree(copied, synthetic_runs / copied.name)
    page = open_page("start")
    assert "copied by hand" in texts(page)
    assert "copied by hand" in texts(press(page, "Reindex"))
    assert (synthetic_runs / FILE).exists()


def test_recent_comparisons_say_what_came_out(synthetic_runs: Path, open_page: Open):
    page = open_page("start")
    assert "Reading answers, KL and sizes of 2 more comparisons." in texts(page)
    listing = list_all(synthetic_runs)
    listing.read(PATIENCE_SECONDS)
    said = list_all(synthetic_runs).table.set_index("id").loc["newer"]
    assert said["closest"]
    shown = texts(open_page("start"))
    assert plain(f"closest to the full cache: {said['closest']}") in shown and "Reading answers" not in shown
