"""Forms propose the model of the comparison in view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.trace.record import read_record, write_record
from tests.pages.conftest import switch_to
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
FORMS = {
    "one": ("new_run", {}),
    "many": ("new_run", {"ask": "Many prompts"}),
    "guarantee": ("new_run", {"ask": "A guarantee"}),
    "timing": ("new_run", {"ask": "Timing"}),
    "live": ("live", {}),
}
OLD, NEW = "some/old", "some/new"  # hub names, which no form looks up


@pytest.fixture
def two_models(runs_root: Path) -> Path:
    """The comparisons `a` of OLD and, newer, `b` of NEW."""
    for number, (comparison, model) in enumerate((("a", OLD), ("b", NEW))):
        path = write_synthetic_run(runs_root, comparison_id=comparison)
        record = read_record(path)
        created = f"2026-01-0{number + 1}T00:00:00+00:00"
        named = record.model.model_copy(update={"name": model})
        write_record(path, record.model_copy(update={"model": named, "created": created}))
    return runs_root


@pytest.mark.parametrize(("page", "query"), FORMS.values(), ids=list(FORMS))
def test_a_form_proposes_the_model_in_view(two_models: Path, open_page: Open, page: str, query: dict[str, str]):
    newest, chosen = open_page(page, **query), open_page(page, comparison="a", **query)
    assert not newest.exception and not chosen.exception
    assert newest.text_input(key="model").value == NEW
    assert chosen.text_input(key="model").value == OLD
    assert chosen.query_params["model"] == OLD, "the address means the same elsewhere"


def test_the_address_comes_first_then_what_was_typed(two_models: Path, open_page: Open):
    page = open_page("new_run", ask="Timing", comparison="a", model="mini")
    assert page.text_input(key="model").value == "mini"
    page = page.text_input(key="model").input(NEW).run()
    assert page.run().text_input(key="model").value == NEW


def test_pages_with_fields_of_one_name_keep_no_model_of_each_other(two_models: Path, open_page: Open):
    page = open_page("new_run", comparison="a", model=NEW)
    del page.query_params["model"]  # as the menu does
    page = switch_to(page, "live").run()
    assert page.text_input(key="model").value == OLD


def test_new_run_proposes_the_last_model_only_where_no_comparison_was_chosen(two_models: Path, open_page: Open):
    (two_models / ".jobs").mkdir()
    (two_models / ".jobs" / "last_form.json").write_text(json.dumps({"model": "some/last"}))
    assert open_page("new_run").text_input(key="model").value == "some/last"
    assert open_page("new_run", comparison="a").text_input(key="model").value == OLD


def test_a_model_that_is_gone_is_not_proposed(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, comparison_id="a")
    record = read_record(path)
    write_record(path, record.model_copy(update={"model": record.model.model_copy(update={"name": "/gone/away"})}))
    assert open_page("new_run", ask="Timing").text_input(key="model").value == "mini"


def test_the_job_carries_the_model_in_view(two_models: Path, open_page: Open):
    page = open_page("new_run", ask="Timing", comparison="a").button(key="measure").click().run()
    assert not page.exception
    (job,) = jobs.list_jobs(two_models)
    assert {request.model for request in jobs.request_of(two_models, job.job_id).requests} == {OLD}
