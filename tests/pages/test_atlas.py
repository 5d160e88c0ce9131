"""The atlas: its index and every exhibit's page open on a recorded comparison, and on no run at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.atlas import registry
from kvlab.atlas.exhibit import Choice, Exhibit
from kvlab.atlas.registry import EXHIBITS, PAPERS
from kvlab.bench.request import BenchJob
from kvlab.results.sources import Sources
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
METHODS = ("full", "h2o", "zsmerge", "kvmerger", "pyramid-pool", "keepkv", "gvote")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with one comparison in which every paper's method ran."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        write_synthetic_run(root, method=method, comparison_id="all", title="all of them")
    return root


@pytest.fixture
def comparison(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, which the pages use."""
    monkeypatch.setenv("KVLAB_RUNS", str(recorded))
    return recorded


def texts(page: AppTest) -> str:
    found = [*page.markdown, *page.caption, *page.info, *page.error, *page.header, *page.warning, *page.code]
    return "\n".join(str(element.value) for element in found)


def script(exhibit: Exhibit) -> str:
    return exhibit.paper.replace("-", "_")


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_an_exhibit_opens_on_a_recorded_comparison(comparison: Path, open_page: Open, exhibit: Exhibit):
    page = open_page(script(exhibit), comparison="all", exhibit=exhibit.slug)
    assert not page.exception
    assert not page.error
    assert page.header[0].value.startswith(f"{exhibit.number} · ")
    assert len(page.get("plotly_chart")) or page.code


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_without_any_run_says_what_it_needs(runs_root: Path, open_page: Open, paper: str):
    page = open_page(paper.replace("-", "_"), exhibit="fig-2")
    assert not page.exception
    assert "There are no runs yet" in texts(page)


def test_an_unknown_exhibit_is_one_sentence(comparison: Path, open_page: Open):
    page = open_page("zsmerge", comparison="all", exhibit="fig-99")
    assert not page.exception
    assert "`fig-99` is not in this paper" in texts(page)


def test_the_index_lists_every_exhibit_with_its_state(comparison: Path, open_page: Open):
    page = open_page("atlas", comparison="all")
    assert not page.exception
    shown = texts(page)
    assert f"of {len(EXHIBITS)} can be drawn" in shown
    assert shown.count("drawn from") + shown.count("needs `kvlab") >= len(EXHIBITS)


def test_the_index_without_any_run_shows_what_ships(runs_root: Path, open_page: Open):
    """Every card has a picture and a verdict that says it is not the reader's own, and a button for these."""
    page = open_page("atlas")
    assert not page.exception
    shown = texts(page)
    assert "Verdicts on the papers' claims on this model" in shown
    filled = sum(exhibit.source != "calculator" for exhibit in EXHIBITS)
    assert shown.count("shipped with kvlab, mini, two CPU cores") == filled
    keys = {button.key for button in page.button}
    assert "order-all" in keys and any("/" in key for key in keys if key and key.startswith("order-"))


def test_the_index_without_what_ships_names_commands(runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.atlas.cards.shipped", lambda: None)
    st.cache_resource.clear()
    page = open_page("atlas")
    assert not page.exception
    assert "needs `kvlab " in texts(page)
    st.cache_resource.clear()


def broken(sources: Sources, choice: Choice, theme: str) -> tuple[()]:
    raise ValueError("no such *column*")


@pytest.fixture
def one_broken(monkeypatch: pytest.MonkeyPatch) -> Exhibit:
    """An exhibit whose drawing has a fault, in the place of the first one."""
    first = replace(EXHIBITS[0], drawing=broken)
    monkeypatch.setattr(registry, "EXHIBITS", (first, *EXHIBITS[1:]))
    st.cache_resource.clear()  # what another test has drawn
    return first


def test_a_fault_in_one_exhibit_leaves_the_rest_of_the_index(
    comparison: Path, open_page: Open, one_broken: Exhibit, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR):
        page = open_page("atlas", comparison="all")
    assert not page.exception
    shown = texts(page)
    assert shown.count("This exhibit failed with an error") == 1
    assert shown.count("drawn from") + shown.count("needs `kvlab") >= len(EXHIBITS) - 1
    record = next(one for one in caplog.records if one_broken.key in one.getMessage())
    assert record.exc_info and isinstance(record.exc_info[1], ValueError)


def test_a_fault_in_an_exhibit_is_one_sentence_on_its_page(comparison: Path, open_page: Open, one_broken: Exhibit):
    page = open_page(script(one_broken), comparison="all", exhibit=one_broken.slug)
    assert not page.exception
    assert [error.value for error in page.error] == [
        r"This exhibit failed with an error \(ValueError\: no such \*column\*\)\. This is a bug in kvlab; "
        "the server's log has the traceback\\."
    ]
    assert len(page.pills[0].options) > 1


def test_a_card_s_button_and_the_one_for_all_queue_what_they_say(
    runs_root: Path, open_page: Open, started_workers: list[Path]
):
    page = open_page("atlas")
    page.button(key="order-keepkv/tab-1").click().run()
    (job,) = jobs.list_jobs(runs_root)
    work = jobs.request_of(runs_root, job.job_id)
    assert isinstance(work, BenchJob) and work.preset == "keepkv-table1"
    page = open_page("atlas")
    every = page.button(key="order-all")
    assert f"{every.label.removeprefix('Queue all ')} jobs can measure on mini" in texts(page)
    assert "an unknown time" not in texts(page)
    every.click().run()
    assert len(jobs.list_jobs(runs_root)) == 1 + int(every.label.removeprefix("Queue all "))
    assert started_workers
