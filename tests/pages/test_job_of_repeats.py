"""A job with repeats shows which are there, and goes on with those that are missing under the same batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.jobs import queue_db
from kvlab.requests.compare import CompareRequest
from kvlab.requests.repeats import Planting, Repeat, plantings
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
CHOICES = (MethodChoice(method="h2o", budget=0.2), MethodChoice(method="keepkv", budget=0.2))


def test_a_cancelled_batch_keeps_what_is_done_and_can_go_on(runs_root: Path, open_page: Open):
    request = CompareRequest(prompt="It was late.", choices=CHOICES, repeats=plantings(3, Planting(), 5), title="Night")
    job_id = jobs.submit(runs_root, request)
    for number, methods in ((1, ("full", "h2o", "keepkv")), (2, ("full",))):
        repeat = Repeat(batch=job_id, number=number, of=3, planting=request.repeats[number - 1])
        for method in methods:
            name = f"{job_id}-{number:02d}"
            write_synthetic_run(runs_root, method=method, comparison_id=name, level="light", repeat=repeat)
    with queue_db.database(runs_root) as connection:
        queue_db.finish(connection, job_id, "cancelled", "Cancelled; what was saved is kept.")
    page = open_page("compare", job=job_id)
    assert not page.exception
    assert "1 has not started." in [element.value for element in page.text]
    races = [element.proto.body for element in page.get("html") if "kv-race" in element.proto.body]
    assert [race.count("<section") for race in races] == [3, 1], "the texts of each prompt that has begun"
    assert any(str(caption.value).replace("\\", "").startswith("**1 of 3: ") for caption in page.caption)
    labels = [button.label for button in page.button]
    assert "Compare the repeats" in labels
    page.button(key="go_on").click().run()
    (again,) = jobs.list_jobs(runs_root)
    assert (again.job_id, again.state) == (job_id, "queued"), "the same job waits again"
    assert "Resume with 2 of 3" in labels
