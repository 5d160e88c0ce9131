"""Of the dashboard's timings: what is clicked and typed is found on the pages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dashboard_speed import changes, pages
from tests.dashboard_speed.changes import MARKS
from tests.synthetic.large import HEADS, write_large_runs


def test_heads_layers_and_zooms_are_found_on_the_pages(
    browser: Any, address: str, served: Path, monkeypatch: pytest.MonkeyPatch
):
    """On runs of two layers; no time is kept, so nothing has to come to rest."""
    monkeypatch.setattr(pages, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(changes, "SETTLE_SECONDS", 0.1)
    marks = {name: MARKS[name] for name in ("similarity", "sag")}
    monkeypatch.setattr(pages, "MARKS", marks)
    runs = write_large_runs(served, layers=2, tokens=512, events=2 * HEADS * 60)
    home, dashboard = SimpleNamespace(new_page=lambda: without_policy(browser)), SimpleNamespace(address=address)
    taken = list(pages._changes(home, dashboard, runs, layers=2, repeats=1))
    assert {figure for figure, _, _ in taken} == {
        *(f"change of {what}, {page}" for page, mark in marks.items() if mark.place for what in ("head", "layer")),
        *(f"change of step, {page}" for page, mark in marks.items() if mark.step),
        "zoom of the similarity map",
    }
    assert all(milliseconds > 0 for _, times, _ in taken for milliseconds in times)


def without_policy(browser: Any) -> Any:
    """A page that may compile what it waits for, which the dashboard's content policy forbids."""
    page = browser.new_page()
    browser.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    return page
