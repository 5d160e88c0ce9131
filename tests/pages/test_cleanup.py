"""What a link names goes with its reader over pages that do not use it; what a page was made of does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.session.streamlit_internals import ELEMENT_ID_PREFIX
from tests.pages.conftest import switch_to
from tests.synthetic.runs import write_synthetic_run

SMALL = {"prompt_tokens": 12, "steps": 4, "layers": 1}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of the older of two comparisons."""
    monkeypatch.setenv("KVLAB_RUNS", str(tmp_path))
    first = write_synthetic_run(tmp_path, method="h2o", comparison_id="a", **SMALL)
    write_synthetic_run(tmp_path, method="h2o", comparison_id="b", **SMALL)
    return first.name


def made_of(page: AppTest) -> int:
    """How many widgets the session remembers the making of, but for those that the address speaks for."""
    state = page.session_state._state._state
    made = state._new_widget_state.widget_metadata.keys() - state._query_param_bound_widget_ids
    return sum(name.startswith(ELEMENT_ID_PREFIX) for name in made)


def test_a_link_to_a_page_without_a_run_keeps_its_run_for_the_next(older: str, open_page: Callable[..., AppTest]):
    page = open_page("speed", run=older)
    assert not page.exception
    page.query_params.clear()  # as the menu does
    switch_to(page, "memory").run()
    assert not page.exception
    assert page.query_params["run"] in (older, [older])


def test_widgets_of_pages_that_were_left_are_forgotten(older: str, open_page: Callable[..., AppTest]):
    page = open_page("memory", run=older)
    alone = made_of(page)
    assert alone > 10
    for name in ("papers", "sag", "heads"):
        switch_to(page, name).run()
        assert not page.exception
    switch_to(page, "memory").run()
    page.run()
    assert not page.exception
    assert made_of(page) == alone
