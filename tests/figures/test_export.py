"""What a figure becomes outside the page."""

from __future__ import annotations

import io
import shutil

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.errors import UserError
from kvlab.figures import export
from kvlab.figures.template import finish

FRAME = pd.DataFrame({"step": [0, 1], "text": ["a,\n<b>", "ü"]})


@pytest.fixture
def figure() -> go.Figure:
    return finish(go.Figure(go.Scatter(x=[0, 1], y=[1, 2])), title="Two <points>", x="step", y="slots")


def test_csv_gives_the_frame_back():
    pd.testing.assert_frame_equal(pd.read_csv(io.BytesIO(export.csv(FRAME))), FRAME)
    named = FRAME.set_index("step")
    pd.testing.assert_frame_equal(pd.read_csv(io.BytesIO(export.csv(named)), index_col="step"), named)


def test_the_page_needs_nothing_else_and_shows_text_as_text(figure: go.Figure):
    page = export.page(figure, "It rose <script>alert(1)</script>.", "run 7").decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "run 7" in page
    assert 'src="http' not in page
    assert len(page) > 1_000_000  # plotly itself is inside


def test_a_page_of_several_figures_holds_plotly_once(figure: go.Figure):
    one = export.page(figure, "It rose by 1.", "run 7")
    sections = [export.Section(figure, f"Reading {place}.", f"run {place}", ("A claim.",)) for place in range(3)]
    three = export.document("Three <figures>", "What they show.", sections)
    assert len(three) < len(one) + 100_000
    text = three.decode()
    assert all(f"Reading {place}." in text and f"run {place}" in text for place in range(3))
    assert "Three &lt;figures&gt;" in text
    assert text.count("A claim.") == 3
    assert 'src="http' not in text


def test_without_a_browser_images_say_what_to_install(figure: go.Figure, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "find_browser", lambda: None)
    with pytest.raises(UserError, match="install it"):
        export.ImageWriter().image(figure, "png")


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is missing")
def test_images_are_images(figure: go.Figure):
    writer = export.ImageWriter()
    try:
        assert writer.image(figure, "png").startswith(b"\x89PNG")
        assert b"<svg" in writer.image(figure, "svg", "dark")[:400]
    finally:
        writer.close()
