"""The cache wall opens for every kind of run, shows the difference of two, and its views follow the address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvlab import jobs
from kvlab.requests.compare import CompareRequest
from kvlab.trace.reader import open_run
from kvlab.views.frames.wall import wall_of
from kvlab.views.wall import packed_fates, wall_vectors
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


def told(page: AppTest) -> str:
    assert not page.exception, page.exception[0].value
    shown = [*page.markdown, *page.caption, *page.info, *page.warning, *page.error]
    return "\n".join(str(element.value) for element in shown).replace("\\", "").replace("\u00a0", " ")


@pytest.mark.parametrize("method", ["full", "h2o", "keepkv", "pool"])
def test_the_wall_of_a_run_says_what_its_heads_hold(runs_root: Path, open_page: Open, method: str) -> None:
    path = write_synthetic_run(runs_root, method=method)
    page = open_page("wall", run=path.name, step="3", layer="1", head="1", panes="text,attention,lineage,kl")
    words = told(page)
    assert "After step 3, over all heads, " in words
    assert ("all of the text is still held." in words) == (method == "full")
    table = page.dataframe[-1].value
    assert len(table) == 4
    assert np.allclose(table[["kept", "holds", "absorbed", "dropped"]].sum(axis=1), 1)


def test_a_run_of_level_light_and_an_empty_folder_get_one_sentence(runs_root: Path, open_page: Open) -> None:
    assert "There are no runs yet" in told(open_page("wall"))
    path = write_synthetic_run(runs_root, level="light")
    assert "without single events" in told(open_page("wall", run=path.name))


def test_two_runs_that_read_different_texts_are_not_compared(runs_root: Path, open_page: Open) -> None:
    path = write_synthetic_run(runs_root, method="h2o")
    other = write_synthetic_run(runs_root, method="keepkv", prompt_tokens=48)
    page = open_page("two_runs", run=path.name, b=other.name)
    assert "have not read the same tokens in the same steps: choose two runs" in told(page)
    light = write_synthetic_run(runs_root, method="snapkv", level="light")
    assert "was recorded at level light" in told(open_page("two_runs", run=path.name, b=light.name))


def test_an_unknown_second_run_is_said_and_unknown_views_are_ignored(runs_root: Path, open_page: Open) -> None:
    path = write_synthetic_run(runs_root, method="h2o")
    write_synthetic_run(runs_root, method="keepkv")
    page = open_page("two_runs", run=path.name, b="nobody", panes="none,such,text")
    assert "This comparison has no other run nobody" in told(page).replace("`", "")
    assert page.session_state["wall-panes"] == ["text"]


def test_fates_and_changes_are_sent_in_the_format_the_browser_reads(tmp_path: Path) -> None:
    wall = wall_of(open_run(write_synthetic_run(tmp_path, prompt_tokens=41, steps=9)))
    vectors = wall_vectors(wall)
    packed = vectors["first"]
    fates = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], 1).reshape(-1)[: wall.first.size]
    assert np.array_equal(fates, wall.first.reshape(-1))
    assert vectors["readBy"].tolist() == [41 + step for step in range(10)]
    assert vectors["changesBy"][-1] == len(wall.change_step) == len(vectors["changeCells"])
    assert packed_fates(np.array([1], np.uint8)).tolist() == [1]


def test_a_change_is_queued_as_two_runs_in_the_heads_it_names(runs_root: Path, open_page: Open) -> None:
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("wall", run=path.name, layer="1", head="0", panes="edit")
    assert page.button(key="wall-rerun").disabled, "no token is chosen"
    page = open_page("wall", run=path.name, layer="1", head="0", panes="edit", token="70")
    assert page.button(key="wall-rerun").disabled, "it is not a token of the prompt"
    for change, where, expected in (
        ("keep the chosen token", "layer 1, head 0", {"kind": "tokens", "tokens": (5,), "heads": ((1, 0),)}),
        ("drop the chosen token", "layer 1, head 0", {"kind": "drop", "tokens": (5,), "heads": ((1, 0),)}),
        ("do not merge", "all layers and heads", {"kind": "apart", "tokens": (), "heads": None}),
    ):
        page = open_page(
            "wall", run=path.name, layer="1", head="0", panes="edit", change=change, where=where, token="5"
        )
        assert not page.exception
        button = page.button(key="wall-rerun")
        assert not button.disabled
        button.click().run()
        request = jobs.request_of(runs_root, jobs.list_jobs(runs_root)[0].job_id)
        assert isinstance(request, CompareRequest)
        as_it_was, changed = (choice.returned for choice in request.choices)
        assert as_it_was is None
        assert changed is not None
        assert changed.model_dump() == expected
