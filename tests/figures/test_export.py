"""What a figure becomes outside the page."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from PIL import Image

from kvlab.core.errors import UserError
from kvlab.views.base import export
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.export import text_panel
from kvlab.views.base.palette import Theme
from kvlab.views.base.template import finish, without_controls
from tests.dashboard_speed.server import chromium

FRAME = pd.DataFrame({"step": [0, 1], "text": ["a,\n<b>", "ü"]})
READING = "The token “<b>” cost $5 & more; then it fell below $3. " + "It rose by 1 at every step of the text. " * 6
READING = READING.strip()
ORIGIN = (
    "run 20261121-062527-e167a6-06-keepkv · keepkv 20 % · mini · cpu · kvlab 0.1.0, torch 2.13.0, transformers 5.23.0"
)
BOXES = """() => {
  const box = (one) => { const {x, y, width, height} = one.getBoundingClientRect(); return {x, y, width, height} }
  const lines = [...document.querySelectorAll("text")].flatMap(
    (text) => text.querySelector("tspan.line") ? [...text.querySelectorAll("tspan.line")] : [text])
  const {width, height} = box(document.querySelector("svg"))
  return {width, height, texts: lines.filter((one) => one.textContent.trim()).map((one) => [one.textContent, box(one)])}
}"""


@pytest.fixture
def figure() -> go.Figure:
    return finish(go.Figure(go.Scatter(x=[0, 1], y=[1, 2])), title="Two <points>", x="step", y="slots")


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a Chromium, to look at what was drawn."""
    with chromium() as browser:
        yield browser.new_page(viewport={"width": 1200, "height": 900})


@pytest.fixture(scope="module")
def writer() -> Iterator[export.ImageWriter]:
    """One Chromium for all images."""
    made = export.ImageWriter()
    yield made
    made.close()


def test_a_picture_has_no_slider_and_no_buttons_and_says_where_the_slider_was():
    figure = finish(go.Figure(go.Bar(x=[0, 1], y=[1, 2])), title="Slots", x="slot", y="tokens")
    figure.frames = frames_of(["3", "4"], [[go.Bar(y=[1, 2])]] * 2)
    moving = with_slider(figure, "step ", 1)
    still = without_controls(moving)
    assert not still.layout.sliders and not still.layout.updatemenus
    assert [one.text for one in still.layout.annotations] == ["step 4"]
    assert still.layout.height < moving.layout.height and still.layout.margin.b < moving.layout.margin.b
    assert moving.layout.sliders and not moving.layout.annotations  # the figure of the page keeps its own
    assert "sliders" in export.page(moving, READING, ORIGIN).decode()
    plain = finish(go.Figure(go.Bar(x=[0], y=[1])), title="Slots", x="slot", y="tokens")
    assert without_controls(plain) == plain


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
    sections = [export.Section(figure, f"Caption {place}.", f"run {place}", ("A claim.",)) for place in range(3)]
    three = export.document("Three <figures>", "What they show.", sections)
    assert len(three) < len(one) + 100_000
    text = three.decode()
    assert all(f"Caption {place}." in text and f"run {place}" in text for place in range(3))
    assert "Three &lt;figures&gt;" in text
    assert text.count("A claim.") == 3
    assert 'src="http' not in text


def test_without_a_browser_images_say_what_to_install(figure: go.Figure, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "find_browser", lambda: None)
    with pytest.raises(UserError, match="install it"):
        export.ImageWriter().image(figure, "png")


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is missing")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_images_carry_their_caption_and_origin_below_the_picture(
    figure: go.Figure, writer: export.ImageWriter, page: Any, theme: Theme
):
    bare, whole = writer.image(figure, "svg", theme=theme), writer.image(figure, "svg", READING, ORIGIN, theme)
    picture = writer.image(figure, "png", READING, ORIGIN, theme)
    width, height, texts = _texts(whole, page)
    _, above, marks = _texts(bare, page)
    words, places = [text for text, _ in texts], [place for _, place in texts]
    said = texts[len(marks) :]
    assert words[: len(marks)] == [text for text, _ in marks]
    assert " ".join(text for text, _ in said) == f"{READING} {ORIGIN}"
    assert min(place["y"] for _, place in said) >= above
    assert all(place["x"] >= 0 and place["x"] + place["width"] <= width for place in places)
    assert all(place["y"] + place["height"] <= height for place in places)
    assert all(first["y"] + first["height"] <= then["y"] + 2 for first, then in pairwise([place for _, place in said]))
    image = Image.open(io.BytesIO(picture))
    assert image.size == (2 * width, 2 * height)
    foot = image.crop((0, round(2 * above), image.width, image.height)).convert("L")
    ground = foot.getpixel((0, 0))
    assert (ground > 200) == (theme == "light")
    assert max(abs(shade - ground) for shade in foot.getextrema()) > 120  # ink on the ground


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is missing")
def test_images_without_words_are_the_picture_alone(figure: go.Figure, writer: export.ImageWriter):
    assert Image.open(io.BytesIO(writer.image(figure, "png"))).size == (2200, 720)


def test_a_caption_is_wrapped_and_as_high_as_its_lines():
    short, long = text_panel("One line.", "run 7"), text_panel("Many words make lines. " * 40, "run 7")
    assert long.layout.height > short.layout.height
    lines = long.layout.annotations[0].text.split("<br>")
    assert " ".join(lines) == " ".join(("Many words make lines. " * 40).split())
    square, narrow = (text_panel(text * 100, "").layout.annotations[0].text for text in ("注意", "ab"))
    assert square.count("<br>") > narrow.count("<br>")
    assert text_panel("", "").layout.annotations == ()


def _texts(svg: bytes, page: Any) -> tuple[float, float, list[tuple[str, dict[str, float]]]]:
    """(width, height, every line of text with its box in pixels) of an SVG as Chromium draws it."""
    page.set_content(f"<body style='margin:0'>{svg.decode()}</body>")
    found = page.evaluate(BOXES)
    return found["width"], found["height"], [tuple(pair) for pair in found["texts"]]
