"""The similarity page draws keys and values at the window of the URL, and says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.similarity import clamp, quantize_cosines
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]


def texts(page: AppTest) -> str:
    return "\n".join(str(element.value) for element in [*page.markdown, *page.caption, *page.info, *page.error])


@pytest.mark.parametrize("what", ["keys", "values"])
@pytest.mark.parametrize("method", ["full", "keepkv"])
def test_keys_and_values_are_drawn(runs_root: Path, open_page: Open, what: str, method: str):
    path = write_synthetic_run(runs_root, method=method)
    page = open_page("similarity", run=path.name, what=what, layer="1", head="1", window="10-30-10-30", mode="max")
    assert not page.exception
    assert f"Similarity of the {what}" in texts(page)
    assert len(page.get("plotly_chart")) == 3  # neighbours, band, wall
    assert f"neighbouring {what} have a cosine of" in texts(page)


def test_a_window_that_makes_no_sense_shows_the_whole_text(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root)
    for window in ("a-b-c-d", "1-2", "900-950-900-950", "30-10-30-10"):
        page = open_page("similarity", run=path.name, window=window)
        assert not page.exception


@pytest.mark.parametrize("level", ["light", "off"])
def test_a_run_without_keys_says_how_to_get_them(runs_root: Path, open_page: Open, level: str):
    path = write_synthetic_run(runs_root, level=level)
    page = open_page("similarity", run=path.name)
    assert not page.exception
    assert f"recorded at level **{level}**, without keys and values" in texts(page)


def test_one_layer_one_head_and_a_cancelled_run(runs_root: Path, open_page: Open):
    path = write_synthetic_run(
        runs_root, layers=1, heads=1, steps=1, status="cancelled", prompt="<script>x</script> " * 4
    )
    page = open_page("similarity", run=path.name)
    assert not page.exception
    assert "<script" not in "".join(element.proto.spec for element in page.get("plotly_chart"))


def test_a_run_of_one_token(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, prompt_tokens=1, steps=1)
    assert not open_page("similarity", run=path.name).exception


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (None, (0, 100, 0, 100)),
        ([10, 30, 50, 70], (10, 30, 50, 70)),
        ([90, 130, 0, 40], (60, 100, 0, 40)),
        ([-5, 5, 0, 10], (0, 10, 0, 10)),
        ([5, 5, 5, 5], (5, 6, 5, 6)),
        ([0, 1000, 0, 1000], (0, 100, 0, 100)),
    ],
)
def test_windows_stay_square_and_inside(asked: list[int] | None, shown: tuple):
    assert clamp(asked, 100) == shown


def test_values_travel_exactly_to_four_digits():
    values = np.linspace(-1, 1, 1001, dtype=np.float32)
    assert np.abs(quantize_cosines(values) / 32767 - values).max() < 5e-5


def test_the_empty_field_of_another_page_means_the_middle_token(runs_root: Path, open_page: Open):
    """Lineage and others have a field of the same name, where empty lets the figure choose."""
    path = write_synthetic_run(runs_root)
    page = open_page("similarity", run=path.name)
    page.session_state["token"] = None
    page.run()
    assert not page.exception
    assert len(page.get("plotly_chart")) == 3
