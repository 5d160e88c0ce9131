"""What tests of forms do with them: send one off, or fill in what it must refuse."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.requests.compare import CompareRequest


def submitted(page: AppTest, root: Path) -> CompareRequest:
    """The comparison that the form on `page` puts into the queue."""
    page = page.button(key="run").click().run()
    assert not page.exception
    (job,) = comparisons(root)
    return jobs.request_of(root, job.job_id)


def comparisons(root: Path) -> list[jobs.JobStatus]:
    """All jobs but those that asked the full cache by themselves."""
    found = [(job, jobs.request_of(root, job.job_id)) for job in jobs.list_jobs(root)]
    return [job for job, request in found if not getattr(request, "aside", False)]


def refused(page: AppTest, field: str, value: str, sentence: str) -> AppTest:
    """The page after `value` was typed, which must be refused in this one sentence."""
    page.text_input(key=field).set_value(value)
    page = page.run()
    assert not page.exception
    assert [sentence in error.value.replace("\\", "") for error in page.error] == [True]
    return page
