"""A fit asked for in a form: its estimate, its job, and the file in the method's field afterwards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.models.fitting.request import FitJob, FitRequest, fitted_file
from kvlab.planning import choices
from kvlab.planning.choices import MethodEntry
from kvlab.requests.compare import CompareRequest
from tests.pages.test_quality import told

Open = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def learning(registered_methods: list[MethodEntry], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods that learn, as `kvlab methods --json` lists them."""
    fields = (("kvzap", "KVzap", "heads"), ("less", "LESS", "weights"))
    added = [
        MethodEntry(
            name=name,
            family="eviction",
            title=title,
            parameters={"properties": {field: {"type": "string", "default": "mini"}}},
        )
        for name, title, field in fields
    ]
    answered: Future[list[MethodEntry]] = Future()
    answered.set_result([*registered_methods, *added])
    before = choices._reading
    monkeypatch.setattr(choices, "_reading", lambda what: answered if what == "methods" else before(what))


def made(root: Path, request: FitRequest, name: str) -> Path:
    """A fit's folder as the worker leaves it."""
    file = fitted_file(root, name)
    file.parent.mkdir(parents=True)
    (file.parent / "request.json").write_text(request.model_dump_json())
    file.write_bytes(b"")
    return file


def test_a_fit_is_asked_for_where_a_method_needs_it(runs_root: Path, open_page: Open, started_workers: list):
    page = open_page("new_run", methods="LESS")
    assert not page.exception and "shipped with kvlab" in told(page)
    page.number_input(key="fit-less.minutes").set_value(2.0)
    page = page.run()
    page.button(key="fit-less").click().run()
    (job,) = jobs.list_jobs(runs_root)
    request = jobs.request_of(runs_root, job.job_id)
    assert isinstance(request, FitJob) and started_workers
    assert (request.request.method, request.request.model, request.request.minutes) == ("less", "mini", 2.0)


def test_a_file_is_offered_to_its_model_and_used(runs_root: Path, open_page: Open):
    file = made(runs_root, FitRequest(method="kvzap", model="mini"), "mine")
    made(runs_root, FitRequest(method="kvzap", model="other"), "theirs")
    page = open_page("new_run", methods="KVzap")
    assert "use-kvzap-mine" in {button.key for button in page.button}
    assert "use-kvzap-theirs" not in {button.key for button in page.button}
    page.button(key="use-kvzap-mine").click().run()
    assert page.text_input(key="kvzap.heads").value == str(file)
    page.button(key="run").click().run()
    asked = [jobs.request_of(runs_root, job.job_id) for job in jobs.list_jobs(runs_root)]
    assert [one.choices[-1].hyper_parameters for one in asked if isinstance(one, CompareRequest)] == [
        {"heads": str(file)}
    ]


def test_a_finished_fit_leads_to_a_run_with_it(runs_root: Path, open_page: Open):
    job = jobs.submit(runs_root, FitJob(name="mine", request=FitRequest(method="kvzap")))
    file = made(runs_root, FitRequest(method="kvzap"), "mine")
    page = open_page("new_run", job=job)
    assert not page.exception and f"kvzap:heads={file}" in told(page) + "".join(code.value for code in page.code)
    page.button(key="use_fitted").click().run()
    page = open_page("new_run", model="mini", methods="KVzap", **{"kvzap.heads": str(file)})
    assert page.text_input(key="kvzap.heads").value == str(file)
