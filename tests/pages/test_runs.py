"""The page Runs: found by word and filter in the address, named, tagged, binned and brought back."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from streamlit.testing.v1 import AppTest
from transformers import DynamicCache

from app.base.text import plain
from app.entries import home
from kvlab import jobs
from kvlab.library.find import list_all
from kvlab.library.recycle_bin import delete
from kvlab.models.load import load_model
from kvlab.requests.compare import RECORDINGS
from kvlab.trace import open_run
from kvlab.trace.index import FILE
from kvlab.trace.user_labels import change_labels
from kvlab.watch.recorder import watch
from tests.jobs.by_hand import work_off
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


def recorded(tmp_path: Path) -> bytes:
    """A cache of the shipped model that keeps the first 20 and the last 20 of 60 tokens, and one step."""
    lab = load_model("mini")
    ids = lab.encode(" ".join(f"word {number}" for number in range(40)))[:, :60]
    cache = DynamicCache()
    with watch(lab.model, title="half", path=str(tmp_path / "a.kvlab")), torch.inference_mode():
        lab.model(ids[:, :-1], past_key_values=cache)
        for layer in cache.layers:
            layer.keys, layer.values = (
                torch.cat([part[:, :, :20], part[:, :, -20:]], 2) for part in (layer.keys, layer.values)
            )
        lab.model(ids[:, -1:], past_key_values=cache, position_ids=torch.tensor([[59]]))
    return (tmp_path / "a.kvlab").read_bytes()


def dropped(open_page: Open, name: str, content: bytes) -> AppTest:
    page = open_page("runs")
    page = page.file_uploader(key="runs-file").upload(name, content, "application/octet-stream").run()
    return page.button(key="runs-take").click().run()


def test_a_dropped_recording_becomes_a_run_beside_the_full_cache(
    runs_root: Path, tmp_path: Path, open_page: Open, started_workers: list
):
    page = dropped(open_page, "My press.kvlab", recorded(tmp_path))
    assert not page.exception and not page.error and started_workers
    (job,) = jobs.list_jobs(runs_root)
    assert work_off(runs_root) == job.job_id
    assert jobs.status(runs_root, job.job_id).state == "complete"
    assert titles(open_page("runs")) == ["half"]
    full, own = sorted(runs_root.glob(f"{job.job_id}-*"))
    assert full.name.endswith("-full")
    assert open_run(own).steps.query("step == 0")["live_slots"].unique().tolist() == [40]
    assert not list((runs_root / RECORDINGS).iterdir()), "the upload is not kept twice"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda whole: b"GIF89a", "a.kvlab is no recording of a cache"),
        (lambda whole: whole[:300], "The recording a.kvlab holds no whole pass"),
        (lambda whole: newer(), "a.kvlab has format 99, and this kvlab reads formats up to 1: update kvlab."),
    ],
)
def test_a_file_that_cannot_be_imported_is_said_in_a_sentence(
    runs_root: Path, tmp_path: Path, open_page: Open, started_workers: list, content: Callable, sentence: str
):
    dropped(open_page, "a.kvlab", content(recorded(tmp_path)))
    status = jobs.status(runs_root, work_off(runs_root))
    assert status.state == "failed" and sentence in status.message
    assert plain(sentence) in open_page("compare", job=status.job_id).error[0].value
    assert not list((runs_root / RECORDINGS).iterdir())


def newer() -> bytes:
    """The header of a recording of a later kvlab."""
    text = json.dumps({"kind": "header", "format": 99, "tensors": {}}).encode()
    packed = zlib.compress(struct.pack("<I", len(text)) + text)
    return b"kvlab recording\n" + struct.pack("<QI", len(packed), zlib.crc32(packed)) + packed
