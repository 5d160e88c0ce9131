"""The rest of a page is drawn once the browser has painted its first chart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.base import component

RUN = "newer-keepkv-25pc-0"
PAGES = ("compare", "lineage", "merges", "regret", "sag", "serving", "timeline")


@pytest.fixture(autouse=True)
def first_chart_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not yet."""
    monkeypatch.setattr(component, "WAITS", True)


def texts(page: AppTest) -> str:
    assert not page.exception
    return "\n".join(str(element.value) for element in [*page.markdown, *page.caption, *page.info, *page.error])


def painted(page: AppTest) -> AppTest:
    """Says what a browser says then."""
    for key in [key for key in page.session_state if key.startswith(component.WAITING)]:
        page.session_state[key] = False
    return page.run()


@pytest.mark.parametrize("name", PAGES)
def test_the_rest_waits_for_the_first_picture(shared_runs: Path, open_page: Callable[..., AppTest], name: str):
    page = open_page(name, run=RUN)
    early = texts(page)
    assert "Drawing the rest" in early
    late = texts(painted(page))
    assert "Drawing the rest" not in late and len(late) > len(early)


def test_of_merges_departures_come_first_and_the_sag_waits(shared_runs: Path, open_page: Callable[..., AppTest]):
    page = open_page("merges", run=RUN)
    assert "Departures per step" in texts(page) and "Attention sag" not in texts(page)
    assert "Attention sag" in texts(painted(page))
