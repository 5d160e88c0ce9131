"""The page Runs: found by word and filter in the address, named, tagged, binned and brought back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.entries import home
from kvlab.library.find import list_all
from kvlab.library.recycle_bin import delete
from kvlab.trace.index import FILE
from kvlab.trace.user_labels import change_labels
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


def titles(page: AppTest) -> list[str]:
    return page.dataframe[0].value["title"].tolist()


def blocks(node: Any) -> Iterator[Any]:
    """The blocks beneath this one."""
    for child in getattr(node, "children", {}).values():
        yield from ([child] if hasattr(child.proto, "popover") else [])
        yield from blocks(child)


def test_an_empty_folder_says_how_to_begin(runs_root: Path, open_page: Open):
    page = open_page("runs")
    assert not page.exception
    assert "There are no results yet" in page.info[0].value


def test_words_and_filters_of_the_address_choose_the_rows(synthetic_runs: Path, open_page: Open):
    change_labels(synthetic_runs, "older", tags=("paper",))
    list_all(synthetic_runs).read(float("inf"))
    assert titles(open_page("runs")) == ["the newer one", "the older one"]
    assert titles(open_page("runs", text="newer")) == ["the newer one"]
    assert titles(open_page("runs", tags="paper")) == ["the older one"]
    assert titles(open_page("runs", sort="title")) == ["the newer one", "the older one"]
    nothing = open_page("runs", methods="nobody")
    assert not nothing.exception and titles(nothing) == []
    odd = open_page("runs", sort="../x", since="yesterday", columns="nothing", starred="maybe")
    assert not odd.exception and len(titles(odd)) == 2


def test_what_is_typed_goes_into_the_address(synthetic_runs: Path, open_page: Open):
    page = open_page("runs")
    page.text_input(key="runs_text").set_value("older").run()
    assert not page.exception
    assert titles(page) == ["the older one"] and page.query_params["text"] in ("older", ["older"])


def test_the_button_says_at_once_how_many_filters_are_set(synthetic_runs: Path, open_page: Open):
    def label(page: AppTest) -> str:
        labels = (block.proto.popover.label for block in blocks(page.main))
        return next(words for words in labels if words.startswith("Filter"))

    assert label(open_page("runs")) == "Filter"
    page = open_page("runs", kinds="comparison")
    assert label(page) == "Filter (1)"
    page.toggle(key="runs_starred").set_value(True).run()
    assert label(page) == "Filter (2)"
    page.multiselect(key="runs_kinds").set_value([]).run()
    assert label(page) == "Filter (1)"


def test_a_named_view_is_kept_and_opens(synthetic_runs: Path, open_page: Open):
    page = open_page("runs", text="older")
    page.text_input(key="runs_view_name").set_value("Mine").run()
    page.button(key="runs_view_save").click().run()
    assert not page.exception
    other = open_page("runs")
    other.button(key="view-Mine").click().run()
    assert not other.exception and titles(other) == ["the older one"]


def test_what_is_in_the_bin_is_brought_back(synthetic_runs: Path, open_page: Open):
    gone = delete(synthetic_runs, "comparison", ["older"], "the older one")
    page = open_page("runs")
    assert titles(page) == ["the newer one"]
    page.button(key=f"back-{gone.key}").click().run()
    assert not page.exception and set(titles(page)) == {"the newer one", "the older one"}


def test_chosen_rows_are_deleted_with_an_undo(synthetic_runs: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open):
    real = home.actions
    monkeypatch.setattr(home, "actions", lambda _: real(list_all(synthetic_runs).table.head(1)))
    page = open_page("runs")
    page.button(key="runs-delete").click().run()
    assert not page.exception and titles(page) == ["the older one"]
    page.button(key="runs-undo").click().run()
    assert not page.exception and len(titles(page)) == 2


def test_chosen_rows_stand_side_by_side_on_every_page(synthetic_runs: Path, open_page: Open):
    for name in ("compare", "timeline"):
        page = open_page(name, comparison="older/newer")
        assert not page.exception and not page.error
    shown = open_page("compare", comparison="older/newer").dataframe[0].value
    assert len(shown) == 5, "one full cache, and two runs of each comparison"
    write_synthetic_run(synthetic_runs, method="full", comparison_id="third", seed=9)
    page = open_page("compare", comparison="older/third")
    assert "another prompt" in page.error[0].value


def test_what_is_not_read_yet_is_read_after_the_page_is_drawn(
    synthetic_runs: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    """The page's own run reads nothing, however much is left."""
    read = []
    monkeypatch.setattr("kvlab.library.find.Listing.read", lambda shelf, seconds: read.append(len(shelf.unread)) or 0)
    page = open_page("runs")
    assert read == [] and any("sizes of 2 more comparisons" in one.value for one in page.caption)
    page.text_input(key="runs_text").set_value("older").run()
    assert read == [] and titles(page) == ["the older one"], "a search does not wait either"


def test_the_timer_reads_what_is_left(synthetic_runs: Path):
    def as_the_timer_does() -> None:
        import streamlit as st

        from app.runs import DRAWN, read_further, shelf

        if (kept := shelf()).unread:
            st.session_state[DRAWN] = True
            read_further(kept)

    assert len(list_all(synthetic_runs).unread) == 2
    page = AppTest.from_function(as_the_timer_does, default_timeout=30).run()
    assert not page.exception and not list_all(synthetic_runs).unread


def test_a_folder_that_no_list_can_show_is_named_and_the_others_are_listed(synthetic_runs: Path, open_page: Open):
    broken = next(synthetic_runs.glob("older*keepkv*"))
    (broken / "run.json").write_text("{")
    (synthetic_runs / FILE).unlink()  # else the list still knows the run, and its pages say what is wrong
    page = open_page("runs")
    assert not page.exception and titles(page) == ["the newer one", "the older one"]
    (said,) = [box.value for box in page.warning]
    told = said.replace("\\", "")  # Markdown's own signs are told as they are
    assert broken.name in told and str(synthetic_runs) not in told
