"""The merges page shows what left and what it did, and is honest about methods that never merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.trace import open_run
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


def texts(page: AppTest) -> str:
    return "\n".join(str(element.value) for element in [*page.markdown, *page.caption, *page.info, *page.error])


def test_a_merging_run_shows_merges_votes_and_sag(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("merges", run=path.name)
    assert not page.exception
    steps = open_run(path).steps
    assert f"{steps['merged'].sum():,.0f} slots were merged into others, in " in texts(page)
    assert "of the attention by dropping tokens" in texts(page) and "attention than apart" in texts(page)
    for title in ("Votes of merged slots", "Attention sag", "Similarity of merged keys", "Guard activations"):
        assert title in texts(page)


def test_one_head_is_shown_by_itself(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("merges", run=path.name, scope="one head", layer="1", head="1")
    assert not page.exception
    assert f"{open_run(path).select('steps', 1, 1)['merged'].sum():,.0f} slots were merged" in texts(page)


def test_an_evicting_run_says_that_it_never_merges(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="h2o")
    page = open_page("merges", run=path.name)
    assert not page.exception
    assert "**h2o** merged nothing here" in texts(page)
    assert "Votes of merged slots" not in texts(page)


def test_the_full_cache_says_that_nothing_left(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="full")
    page = open_page("merges", run=path.name)
    assert not page.exception
    assert "the full cache keeps every token" in texts(page)
    assert "Guard activations" not in texts(page), "it has no safeguard"


@pytest.mark.parametrize("measure", ["sag", "regret", "output_error", "guard_activations", "max_votes"])
def test_every_measure_has_its_map(runs_root: Path, open_page: Open, measure: str):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("merges", run=path.name, measure=measure)
    assert not page.exception


def test_a_light_run_shows_counts_and_says_what_is_missing(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv", level="light")
    page = open_page("merges", run=path.name)
    assert not page.exception
    assert "Departures per step" in texts(page)
    assert "without single events" in texts(page)
    assert "the attention with nothing dropped behind sag and regret" in texts(page)
    assert "did not record the attention with nothing dropped" in texts(page)


def test_a_run_recorded_off_says_that_all_is_missing(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, level="off")
    page = open_page("merges", run=path.name)
    assert not page.exception
    assert "without everything this page shows" in texts(page)


def test_a_cancelled_run_of_one_layer_and_head(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, layers=1, heads=1, steps=1, status="cancelled")
    page = open_page("merges", run=path.name)
    assert not page.exception
    assert "was cancelled" in texts(page)
