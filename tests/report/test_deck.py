"""A story as a talk: one file that needs no network, slides that answer keys, figures that are drawn, nothing cut."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from kvlab.core.errors import UserError
from kvlab.report import slide_parts
from kvlab.report.deck import deck
from kvlab.report.export import export_talk, why_unavailable
from kvlab.report.slide_parts import story_slides
from kvlab.report.views import Passages, Table, kind_of
from kvlab.trace.stories import Slide, Story, View, load_story, parse_story, save_story
from kvlab.views.base import export
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.template import finish
from kvlab.views.board import board
from kvlab.views.frames.textdiff import Segment
from kvlab.views.wall import wall_picture
from tests.dashboard_speed.server import BROWSERS
from tests.figures.test_board import a_board
from tests.report.test_report import picture

needs_browser = pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="needs Chromium")
WORDS = "</script><b>bold</b>"
MEASURED = """() => {  // size of letters, whether the height is enough, whether the width is
  const box = document.querySelector("section.shown .scroll");
  const size = parseFloat(getComputedStyle(box.querySelector("table") ?? box).fontSize);
  return [size, box.scrollHeight <= box.clientHeight + 1, box.scrollWidth <= box.clientWidth + 1];
}"""


def story(count: int = 3) -> Story:
    figure = go.Figure(go.Scatter(y=np.sin(np.arange(200)), text=[WORDS] * 200)).update_layout(title=WORDS)
    slide = Slide(
        title=f"keepkv 30 % {WORDS}", caption="It rises.", source="one prompt of 24 tokens", figure=figure.to_json()
    )
    views = [View(page="sag", query={"run": "x"}, slide=slide) for _ in range(count)]
    return Story(name="Talk", views=(*views, View(page="compare", caption="What we saw")))


def test_a_talk_is_one_file_in_which_no_text_is_markup():
    text = deck(story()).decode()
    assert WORDS not in text.replace("<\\/", "</").split("<main>")[1].split("</main>")[0]
    assert text.count("plotly.js v") == 1 and "</script><b>" not in text.split("const given")[1]
    assert "src=" not in text.split("<main>")[0]


def test_eight_figures_stay_within_the_measure():
    assert len(deck(story(8))) < 5.5 * 2**20


def test_slides_are_kept_edited_and_come_back(tmp_path: Path):
    made = story().reworded(0, title="First").duplicated(0).moved(0, 1).reworded(2, caption="look")
    save_story(tmp_path, made)
    assert load_story(tmp_path, "Talk") == made == parse_story(made.model_dump_json())
    assert [view.title for view in made.views[:2]] == ["First", "First"] and len(made.views) == 5
    old = '{"name": "Old", "views": [{"page": "sag", "query": {}, "caption": "c"}]}'
    assert parse_story(old).views[0].slide is None, "a story from before slides opens"
    before = made.model_dump_json().replace('"caption":"It rises."', '"reading":"It rises."')
    assert before != made.model_dump_json() and parse_story(before) == made, "a caption was called a reading"


def test_a_story_is_slides_of_its_figures():
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    slides = pptx.Presentation(io.BytesIO(story_slides(story(), picture))).slides
    assert len(slides) == 4
    assert [any(shape.shape_type == 13 for shape in slide.shapes) for slide in slides] == [True, True, True, False]
    assert "one prompt" in slides[0].notes_slide.notes_text_frame.text


@pytest.mark.parametrize("figure", ["", "[]", '{"data": [{"type": "nothing"}]}', "{"])
def test_a_damaged_figure_is_one_sentence(figure: str):
    broken = Story(name="x", views=(View(page="sag", slide=Slide(title="t", figure=figure)),))
    with pytest.raises(UserError, match="damaged"):
        deck(broken)


def test_an_empty_story_is_one_sentence():
    with pytest.raises(UserError, match="no views yet"):
        deck(Story(name="x"))


@needs_browser
def test_keys_lead_through_and_nothing_is_cut(page: Any, tmp_path: Path):
    (tmp_path / "talk.html").write_bytes(deck(story()))
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto((tmp_path / "talk.html").as_uri())
    page.wait_for_selector("#chart-0 .main-svg")
    page.wait_for_selector("#chart-1 .main-svg", state="attached")
    for key, at in (("ArrowRight", 2), ("End", 4), ("ArrowRight", 4), ("PageUp", 3), ("Home", 1), (" ", 2)):
        page.keyboard.press(key)
        assert page.evaluate("document.body.dataset.at") == str(at), key
    for width, height in ((1280, 720), (1024, 768), (853, 480)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(300)
        box = page.locator("section.shown .main-svg").first.bounding_box()
        foot = page.locator("section.shown footer").bounding_box()
        assert box["width"] > 0.8 * width and box["height"] > 0.4 * height
        assert box["x"] + box["width"] <= width + 1 and foot["y"] + foot["height"] <= height + 1
    assert not failed


@needs_browser
def test_on_paper_a_slider_has_no_controls_and_still_says_where_it_is(page: Any, tmp_path: Path):
    figure = finish(go.Figure(go.Bar(y=[1, 2])), title="Slots", x="slot", y="tokens")
    figure.frames = frames_of(["3", "4"], [[go.Bar(y=[1, 2])]] * 2)
    slide = Slide(title="Slots", figure=with_slider(figure, "step ", 1).to_json())
    (tmp_path / "talk.html").write_bytes(deck(Story(name="Talk", views=(View(page="sag", slide=slide),))))
    page.emulate_media(media="screen")
    page.goto((tmp_path / "talk.html").as_uri())
    grip, label, button = (page.locator(f"#chart-0 .{name}").first for name in (
        "slider-grip-rect", "slider-label", "updatemenu-button"))  # fmt: skip
    label.wait_for()
    assert grip.is_visible() and button.is_visible()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("!document.querySelector('#chart-0 .slider-grip-rect')?.getClientRects().length")
    assert not grip.is_visible() and not button.is_visible()
    assert label.is_visible() and label.text_content() == "step 4"
    page.emulate_media(media="screen")


@needs_browser
def test_a_table_or_text_a_little_too_large_is_written_smaller_and_one_far_too_large_scrolls(page: Any, tmp_path: Path):
    def rows(count: int, columns: int = 3) -> Table:
        return Table(columns=tuple(f"column {at}" for at in range(columns)), rows=(("a word",) * columns,) * count)

    def words(count: int) -> Passages:
        return Passages(passages=(("h2o", (Segment("same", "nothing that is cut is read " * count),)),))

    shown = (rows(3), rows(15), rows(90), rows(3, 12), words(180), words(900))
    given = [Slide(title="x", kind=kind_of(one), figure=one.model_dump_json()) for one in shown]
    (tmp_path / "talk.html").write_bytes(deck(Story(name="x", views=tuple(View(page="", slide=one) for one in given))))
    page.goto((tmp_path / "talk.html").as_uri())
    found = []
    for _ in shown:
        found.append(page.evaluate(MEASURED))
        page.keyboard.press("PageDown")
    sizes = [size for size, _, _ in found]
    assert [whole for _, whole, _ in found] == [True, True, False, True, True, False]
    assert all(inside for _, _, inside in found)
    assert sizes[1] < sizes[0] and sizes[3] < sizes[0] and sizes[4] < sizes[5], sizes
    assert sizes[2] == sizes[0]


def test_a_view_without_a_picture_says_so_where_the_picture_would_be():
    """Those of older stories; what is added now has one."""
    view = View(page="timeline", query={"run": "x", "layer": "3"}, caption="Here it was lost.")
    made = deck(Story(name="Old", views=(view,))).decode()
    figure = made.split('id="figure-0">')[1].split("</div>")[0]
    assert "A view of the page Timeline" in figure and "layer 3" in figure
    assert "<p>Here it was lost.</p>" in made
    pptx = pytest.importorskip("pptx")
    (slide,) = pptx.Presentation(io.BytesIO(story_slides(Story(name="Old", views=(view,)), picture))).slides
    told = " ".join(shape.text_frame.text for shape in slide.shapes if shape.has_text_frame)
    assert "Here it was lost." in told and "A view of the page Timeline" in told


SHARED = """() => [...document.querySelectorAll(".modebar-btn")].map((one) => one.dataset.title)
  .filter((title) => /share/i.test(title ?? ""))"""


@needs_browser
@pytest.mark.parametrize("kind", ["talk", "figure", "figures of a page", "plotly alone"])
def test_no_exported_chart_offers_to_send_its_data_away(kind: str, page: Any, tmp_path: Path):
    figure = finish(go.Figure(go.Bar(y=[1, 2])), title="Slots", x="slot", y="tokens")
    sections = [export.Section(figure, "They rise.", "run 7")] * 2
    made = {
        "talk": lambda: deck(story(1)),
        "figure": lambda: export.page(figure, "They rise.", "run 7"),
        "figures of a page": lambda: export.document("Page", "", sections),
        "plotly alone": lambda: figure.to_html().encode(),
    }[kind]()
    (tmp_path / "made.html").write_bytes(made)
    page.goto((tmp_path / "made.html").as_uri())
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    page.locator(".js-plotly-plot").first.hover(force=True)
    offered = page.evaluate(SHARED)
    assert bool(offered) == (kind == "plotly alone"), "plotly.js offers it by itself; what is exported never does"


def wall() -> go.Figure:
    codes = (np.arange(6 * 60) % 3).astype(np.uint8).reshape(6, 60)
    return wall_picture(codes, [0, 1, 2], 2, ["#ff0000", "#00ff00", "#0000ff"], ["a", "b", "c"], "The cache", "light")


@needs_browser
@pytest.mark.parametrize("place", [0, 1, 4])
def test_the_picture_of_a_wall_is_in_the_pdf_at_every_place_of_a_talk(place: int):
    views = list(story(4).views[:4])
    views.insert(place, View(page="wall", slide=Slide(title="The cache", figure=wall().to_json())))
    made = export_talk(Story(name="Talk", views=tuple(views)), "pdf")
    assert len(re.findall(rb"/Subtype ?/Image", made)) == 1


@needs_browser
@pytest.mark.parametrize("budgets", [1, 3])
def test_the_texts_of_a_board_of_ten_methods_are_large_and_apart_on_a_slide(budgets: int, page: Any, tmp_path: Path):
    """At 1280 x 720 none is under 10 pixels or covers another, and none is cut."""
    slide = Slide(title="Answers", figure=board(a_board(budgets, 14, 10), slide=True).to_json(), caption="Right. " * 40)
    (tmp_path / "talk.html").write_bytes(deck(Story(name="Talk", views=(View(page="compare", slide=slide),))))
    page.goto((tmp_path / "talk.html").as_uri())
    page.locator("#chart-0 .annotation-text").first.wait_for()
    page.wait_for_timeout(300)
    boxes = [one.bounding_box() for one in page.query_selector_all("#chart-0 .annotation-text")]
    assert len(boxes) == 2 * 10 * budgets
    assert min(box["height"] for box in boxes) >= 10
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
            down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
            assert across <= 1 or down <= 4, (one, other)  # a box is higher than its letters
    foot = page.locator("section.shown > p").bounding_box()
    assert max(box["y"] + box["height"] for box in boxes) <= foot["y"]


def test_a_long_caption_is_in_a_smaller_font():
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    sizes = []
    for words in ("Short.", "Long words. " * 40):
        slide = Slide(title="x", figure=wall().to_json(), caption=words)
        made = story_slides(Story(name="Talk", views=(View(page="wall", slide=slide),)), picture)
        shapes = pptx.Presentation(io.BytesIO(made)).slides[0].shapes
        (box,) = [one for one in shapes if one.has_text_frame and one.text_frame.text == words]
        sizes.append(box.text_frame.paragraphs[0].font.size.pt)
    assert 16 == sizes[0] > sizes[1] >= 8


def test_a_format_that_cannot_be_made_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slide_parts, "find_spec", lambda name: None)
    assert why_unavailable("pptx") == slide_parts.MISSING and not why_unavailable("html")
    with pytest.raises(UserError, match=r"pip install 'kvlab\[slides\]'"):
        story_slides(story(1), picture)
