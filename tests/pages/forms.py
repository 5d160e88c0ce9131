"""What tests of forms do with them: send one off, or fill in what it must refuse."""

from __future__ import annotations

import html
import re
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


def previews(page: AppTest) -> list[str]:
    """The texts that the form shows as they will be read, with or without marked facts."""
    marked = [element.proto.body for element in page.get("html") if 'class="kv-prompt"' in element.proto.body]
    bare = [re.sub(r"<[^>]*>", "", body.split('class="kv-prompt">')[1]) for body in marked]
    return [*(element.value for element in page.text), *map(html.unescape, bare)]


def refused(page: AppTest, field: str, value: str, sentence: str) -> AppTest:
    """The page after `value` was typed, which must be refused in this one sentence."""
    page.text_input(key=field).set_value(value)
    page = page.run()
    assert not page.exception
    assert [sentence in error.value.replace("\\", "") for error in page.error] == [True]
    return page
