"""The atlas: its index and every exhibit's page open on a recorded comparison, and on no run at all."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.entries import papers as papers_page
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.common.formatting import model_title
from kvlab.core.assets import asset_path
from kvlab.evaluation.request import EvalJob
from kvlab.papers import registry
from kvlab.papers.exhibit import Choice, Exhibit
from kvlab.papers.registry import EXHIBITS, PAPERS
from kvlab.results.shipped_folder import shipped_results
from kvlab.results.sources import Sources
from kvlab.trace.schema import ModelShape
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
CARD_STATES = ("drawn from run", "drawn from comp", "drawn from eval", "shipped with kvlab, mini", "needs `kvlab")
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


def states(shown: str) -> int:
    """How many cards say where they are from or what they need."""
    return sum(shown.count(words) for words in CARD_STATES)


def unlike() -> list[Exhibit]:
    """An exhibit of each paper, source and set of controls; all of them with KVLAB_CONFORMANCE=full.

    tests/papers draws every exhibit; what a page adds to a drawing depends on these.
    """
    if os.environ.get("KVLAB_CONFORMANCE") == "full":
        return list(EXHIBITS)
    return list({(one.paper, one.source, *sorted(one.controls)): one for one in EXHIBITS}.values())


@pytest.mark.parametrize("exhibit", unlike(), ids=lambda exhibit: exhibit.key)
def test_an_exhibit_opens_on_a_recorded_comparison(comparison: Path, open_page: Open, exhibit: Exhibit):
    page = open_page("papers", comparison="all", paper=exhibit.paper, exhibit=exhibit.slug)
    assert not page.exception
    assert not page.error
    assert page.header[0].value.startswith(f"{exhibit.number} · ")
    assert len(page.get("plotly_chart")) or page.code


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_without_any_run_says_what_it_needs(runs_root: Path, open_page: Open, paper: str):
    page = open_page("papers", paper=paper, exhibit="fig-2")
    assert not page.exception
    assert "There are no runs yet" in texts(page)


def test_an_unknown_exhibit_is_one_sentence(comparison: Path, open_page: Open):
    page = open_page("papers", comparison="all", paper="zsmerge", exhibit="fig-99")
    assert not page.exception
    assert "`fig-99` is not in this paper" in texts(page)


def test_the_index_without_any_run_shows_what_ships(runs_root: Path, open_page: Open):
    """Every card has a picture and a verdict that says it is not the reader's own, and a button for these."""
    page = open_page("papers")
    assert not page.exception
    assert "hold on mini" in texts(page) and len(page.get("plotly_chart")) == 1
    page = open_page("papers", paper="keepkv")
    shown = texts(page)
    filled = len(registry.of_paper("keepkv"))
    assert shown.count("shipped with kvlab, mini, two CPU cores") == filled
    keys = {button.key for button in page.button}
    assert "order-all" in keys and any("/" in key for key in keys if key and key.startswith("order-"))


def test_the_index_without_what_ships_names_commands(runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvlab.papers.scorecard.shipped_results", dict)
    st.cache_resource.clear()
    page = open_page("papers", paper="keepkv")
    assert not page.exception
    assert "needs `kvlab " in texts(page)
    st.cache_resource.clear()


def broken(sources: Sources, choice: Choice, theme: str) -> tuple[()]:
    raise ValueError("no such *column*")


@pytest.fixture
def one_broken(monkeypatch: pytest.MonkeyPatch, recorded: Path) -> Exhibit:
    """An exhibit whose drawing has a fault, in the place of the first one."""
    shutil.rmtree(recorded / ".atlas", ignore_errors=True)
    first = replace(EXHIBITS[0], drawing=broken)
    for module in (registry, papers_page):
        monkeypatch.setattr(module, "EXHIBITS", (first, *EXHIBITS[1:]))
    st.cache_resource.clear()  # what another test has drawn
    return first


def test_a_fault_in_one_exhibit_leaves_the_rest_of_the_index(
    comparison: Path, open_page: Open, one_broken: Exhibit, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR):
        page = open_page("papers", comparison="all", paper=one_broken.paper)
    assert not page.exception
    shown = texts(page)
    assert shown.count("This exhibit failed with an error") == 1
    assert states(shown) >= len(registry.of_paper(one_broken.paper)) - 1
    record = next(one for one in caplog.records if one_broken.key in one.getMessage())
    assert record.exc_info and isinstance(record.exc_info[1], ValueError)


def test_a_fault_in_an_exhibit_is_one_sentence_on_its_page(comparison: Path, open_page: Open, one_broken: Exhibit):
    page = open_page("papers", comparison="all", paper=one_broken.paper, exhibit=one_broken.slug)
    assert not page.exception
    assert [error.value for error in page.error] == [
        r"This exhibit failed with an error \(ValueError\: no such \*column\*\)\. This is a bug in kvlab; "
        "the server's log has the traceback\\."
    ]
    assert len(page.selectbox[-1].options) > 1


def test_a_card_s_button_and_the_one_for_all_queue_what_they_say(
    runs_root: Path, open_page: Open, started_workers: list[Path]
):
    page = open_page("papers", paper="keepkv")
    page.button(key="order-keepkv/tab-1").click().run()
    (job,) = jobs.list_jobs(runs_root)
    work = jobs.request_of(runs_root, job.job_id)
    assert isinstance(work, BenchJob) and work.preset == "keepkv-table1"
    page = open_page("papers", paper="keepkv")
    every = page.button(key="order-all")
    assert f"{every.label.removeprefix('Queue all ')} jobs can measure on mini" in texts(page)
    assert "an unknown time" not in texts(page)
    every.click().run()
    assert len(jobs.list_jobs(runs_root)) == 1 + int(every.label.removeprefix("Queue all "))
    assert started_workers


@pytest.fixture
def another(runs_root: Path, tmp_path: Path) -> str:
    """A model in a folder, with one comparison of it in the runs."""
    folder = tmp_path / "models" / "another"
    shutil.copytree(asset_path("mini"), folder)
    shape = ModelShape(
        name=str(folder), family="llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, dtype="float32", parameters=0,
    )  # fmt: skip
    for method in ("full", "h2o", "zsmerge"):
        write_synthetic_run(runs_root, method=method, comparison_id="theirs", model=shape)
    return str(folder)


def badges(page: AppTest) -> list[str]:
    """The text of the badge of every chart, "" without one."""
    specs = [json.loads(chart.proto.spec) for chart in page.get("plotly_chart")]
    return [
        next((one["text"] for one in spec["layout"].get("annotations", ()) if one.get("name") == "measured-on"), "")
        for spec in specs
    ]


def test_with_another_model_in_view_its_jobs_are_queued_and_mini_s_figures_have_a_badge(
    runs_root: Path, another: str, open_page: Open, started_workers: list[Path]
):
    page = open_page("papers", comparison="theirs", paper="keepkv", exhibit="tab-3")
    assert not page.exception
    assert "were measured on mini, and not on another" in texts(page)
    assert f"--model {another}" in texts(page)
    assert "on mini" in texts(page)
    assert badges(page) and set(badges(page)) == {"<b>measured on mini</b>"}  # the evidence of the verdict too
    page.button(key="order-keepkv/tab-3").click().run()
    (job,) = jobs.list_jobs(runs_root)
    work = jobs.request_of(runs_root, job.job_id)
    assert isinstance(work, EvalJob) and work.request.model == another
    own = open_page("papers", comparison="theirs", paper="zsmerge", exhibit="fig-2")
    assert set(badges(own)) == {""} and "measured on mini" not in texts(own)


def test_the_index_of_another_model_has_a_column_of_its_own(runs_root: Path, another: str, open_page: Open):
    page = open_page("papers", comparison="theirs")
    assert not page.exception
    shown = texts(page)
    assert "hold on mini" in shown
    assert "can measure on another what the cards lack" in shown
    (table,) = (frame.value for frame in page.dataframe if "claim" in frame.value)
    models = [*map(model_title, shipped_results()), "another"]
    assert list(table.columns) == ["paper", "number", "title", *models, "the papers' shapes", "claim"]
    assert not table["another"].str.contains("holds").any()  # one prompt decides nothing
    assert table["mini"].str.startswith("✓ holds").sum() > 20


def test_the_index_lists_every_exhibit_with_its_state_and_keeps_verdicts_on_disk(
    comparison: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    """Its incomplete summary says how many verdicts there are."""
    shutil.rmtree(comparison / ".atlas", ignore_errors=True)
    st.cache_resource.clear()
    told: list[float] = []
    monkeypatch.setattr("app.entries.papers.st.progress", lambda share, words: told.append(share))
    of_paper = len(registry.of_paper("kvmerger"))
    first = texts(open_page("papers", comparison="all", paper="kvmerger"))
    assert f"of {of_paper} can be drawn" in first
    assert states(first) >= of_paper
    assert told and told[0] == 0
    st.cache_resource.clear()
    told.clear()
    monkeypatch.setattr("kvlab.papers.scorecard._draw_card", lambda *_: 1 / 0)
    again = open_page("papers", comparison="all", paper="kvmerger")
    assert not again.exception and not told
    assert states(texts(again)) == states(first)


def listed(page: AppTest) -> pd.DataFrame:
    """The list of figures and tables."""
    (table,) = (frame.value for frame in page.dataframe if "claim" in frame.value)
    return table


def test_a_search_filters_list_and_cards_and_is_in_the_address(runs_root: Path, open_page: Open):
    page = open_page("papers", search="Weights gaussian")
    assert not page.exception
    assert page.text_input[0].value == "Weights gaussian"
    table = listed(page)
    assert table["title"].tolist() == [
        "Gaussian kernel of weights",
        "Gaussian or equal weights",
        "Width of the Gaussian",
    ]
    assert set(table["paper"]) == {"KVMerger"}
    assert "3 of 81 figures and tables have Weights gaussian" in texts(page)
    page.text_input[0].set_value("  ").run()
    assert len(set(zip(listed(page)["paper"], listed(page)["number"], strict=True))) == len(EXHIBITS)
    assert not page.exception


def test_a_search_for_a_claim_finds_its_exhibit_and_one_for_nothing_says_so(runs_root: Path, open_page: Open):
    assert listed(open_page("papers", search="grkv refit ridge"))["number"].tolist() == ["Contest 6"]
    page = open_page("papers", search="<b>no such word</b>")
    assert not page.exception and not page.dataframe
    assert "0 of 81 figures and tables have" in texts(page)
