"""What is no chart, as slides: kept whole, in shapes of the office program, alive, printed, refused where damaged."""

from __future__ import annotations

import io
import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from PIL import Image

from kvlab.core.errors import UserError
from kvlab.report.deck import content, deck
from kvlab.report.export import export_talk
from kvlab.report.slide_parts import story_slides
from kvlab.report.views import History, Passages, Shown, Table, Text, kind_of, table_of
from kvlab.trace.stories import Slide, Story, View
from kvlab.views.base.export import ImageWriter
from kvlab.views.frames.lineage import Lineage, states_at
from tests.dashboard_speed.server import BROWSERS

needs_browser = pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="needs Chromium")
needs_office = pytest.mark.skipif(
    not (shutil.which("soffice") and shutil.which("pdftotext")), reason="needs LibreOffice (soffice) and poppler-utils"
)
HOSTILE = "</script><b>bold</b> \x00 & <i>"
PRESENTATION = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
SVG = "{http://www.w3.org/2000/svg}"


def view(title: str, shown: Shown | go.Figure, **more: Any) -> View:
    figure = isinstance(shown, go.Figure)
    drawn = shown.to_json() if isinstance(shown, go.Figure) else shown.model_dump_json()
    kind = "figure" if figure or not isinstance(shown, Shown) else kind_of(shown)
    return View(page="x", slide=Slide(title=title, caption="It shows.", kind=kind, figure=drawn, **more))


@pytest.fixture(scope="module")
def story(history: History, text: Text) -> Story:
    table = table_of(pd.DataFrame({"method": ["full", HOSTILE], "KL": [0.123456, float("nan")], "slots": [12, 7]}))
    passages = Passages(passages=(("full", (("same", "48213."),)), ("h2o", (("own", HOSTILE), ("missing", "48213.")))))
    lines = go.Figure([go.Scatter(x=[0, 1, 2], y=np.array([1.0, 2.0, 4.0]), mode="lines", name="h2o")])
    heat = go.Figure(go.Heatmap(z=np.eye(8))).update_layout(height=400)
    many = table_of(pd.DataFrame({"row": range(23)}))
    of = {"of": "keepkv 30 % · mini · layer 3, head 1", "source": "run 2026-x; seed 0\nkvlab 0.1"}
    shown = {
        "Table": table,
        "Hero": history,
        "Text": text,
        "Texts": passages,
        "Lines": lines,
        "Heat": heat,
        "Many": many,
    }
    return Story(name="Talk", views=tuple(view(title, one, **of) for title, one in shown.items()))


def test_a_slide_holds_what_it_was_made_of(story: Story, history: History, text: Text, lineage: Lineage):
    again = [content(one) for one in Story.model_validate_json(story.model_dump_json()).views]
    assert again[1] == history and again[2] == text
    for step in history.steps:
        assert (states_at(history.lineage(), step) == states_at(lineage, step)).all()
        assert (history.lineage().owners(step) == lineage.owners(step)).all()
    assert isinstance(again[0], Table) and again[0].rows[0] == ("full", "0.1235", "12") and again[0].rows[1][1] == ""


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("history", {"parent": (1, 0)}),  # a circle would never end in a browser
        ("history", {"birth": (0,)}),
        ("history", {"parent": (9, -1)}),
        ("text", {"codes": (0, 7)}),
        ("table", {"rows": (("a",),)}),
    ],
)
def test_damaged_views_are_one_sentence(kind: str, change: dict[str, Any]):
    good = {
        "history": History(texts=("a", "b"), birth=(0, 0), leave=(1, 1), death=(-1, -1), absorb=(-1, -1),
                           parent=(-1, -1), steps=(0, 1), step=1),
        "text": Text(texts=("a", "b"), codes=(0, 0), classes=()),
        "table": Table(columns=("a", "b"), rows=()),
    }[kind]  # fmt: skip
    damaged = good.model_copy(update=change)
    with pytest.raises(UserError, match="damaged"):
        content(view("t", damaged))


def test_slides_hold_tables_texts_and_pictures_with_their_svg(story: Story):
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    from tests.report.test_report import picture as drawn

    slides = pptx.Presentation(io.BytesIO(story_slides(story, drawn))).slides
    by_title: dict[str, list[Any]] = {}
    for slide in slides:
        by_title.setdefault(slide.shapes.title.text, []).append(slide)
    assert {title: len(found) for title, found in by_title.items()} == {
        "Table": 1, "Hero": 1, "Text": 1, "Texts": 1, "Lines": 1, "Heat": 1, "Many": 2
    }  # fmt: skip
    rows = [
        row.cells[0].text
        for slide in by_title["Many"]
        for row in next(s for s in slide.shapes if s.has_table).table.rows
    ]
    assert [row for row in rows if row != "row"] == [str(number) for number in range(23)]
    for title in ("Hero", "Text", "Heat", "Lines"):
        shown = next(shape for shape in by_title[title][0].shapes if shape.shape_type == 13)
        blip = next(node for node in shown._element.iter() if node.tag.endswith("svgBlip"))
        part = by_title[title][0].part.related_part(
            next(value for name, value in blip.attrib.items() if "embed" in name)
        )
        assert part.content_type == "image/svg+xml" and part.blob.startswith(b"<svg")
    for slide in slides:
        assert slide.notes_slide.notes_text_frame.text == "run 2026-x; seed 0\nkvlab 0.1"
        said = [shape.text_frame.text for shape in slide.shapes if shape.has_text_frame]
        assert "keepkv 30 % · mini · layer 3, head 1" in said and not any("2026-x" in words for words in said)


def test_the_file_keeps_the_rules_of_its_format(story: Story):
    """What an office program repairs or refuses: parts without a type, links to nothing, an id twice, a wrong order."""
    pytest.importorskip("pptx", reason="needs kvlab[slides]")
    from tests.report.test_report import picture as drawn

    file = ZipFile(io.BytesIO(story_slides(story, drawn)))
    names = file.namelist()
    assert len(names) == len(set(names))
    types = ElementTree.fromstring(file.read("[Content_Types].xml"))
    endings = {one.get("Extension") for one in types if one.tag.endswith("Default")}
    parts = [str(one.get("PartName")).lstrip("/") for one in types if one.tag.endswith("Override")]
    assert len(parts) == len(set(parts)) and set(parts) <= set(names), "a type of a part that is not there"
    reached = {"[Content_Types].xml"}
    for name in names:
        assert name == "[Content_Types].xml" or name in parts or name.rsplit(".", 1)[-1] in endings, (
            f"{name} has no type"
        )
        if not name.endswith(".rels"):
            continue
        folder, own = name.split("_rels/")
        links = {one.get("Id"): one for one in ElementTree.fromstring(file.read(name))}
        targets = [one.get("Target", "") for one in links.values() if one.get("TargetMode") != "External"]
        ends = {posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/") for target in targets}
        assert ends <= set(names), f"{name} leads to nothing"
        reached |= ends | {name}
        if (source := folder + own.removesuffix(".rels")) in names:
            used = re.findall(r'r:(?:id|embed|link|pict)="(\w+)"', file.read(source).decode())
            assert set(used) <= set(links), f"{source} uses a link it does not have"
    assert reached == set(names), "a part that nothing leads to"
    for name in names:
        if re.fullmatch(r"ppt/slides/slide\d+.xml", name):
            _check_slide(ElementTree.fromstring(file.read(name)), name)


def _check_slide(slide: ElementTree.Element, name: str) -> None:
    ids = [one.get("id") for one in slide.iter(f"{PRESENTATION}cNvPr")]
    assert len(ids) == len(set(ids)), f"{name} has an id twice"
    assert [one.tag for one in slide[0]][:2] == [f"{PRESENTATION}bg", f"{PRESENTATION}spTree"]
    for table in slide.iter(f"{DRAWING}tbl"):
        wide = len(table.findall(f"{DRAWING}tblGrid/{DRAWING}gridCol"))
        assert all(len(row.findall(f"{DRAWING}tc")) == wide for row in table.findall(f"{DRAWING}tr"))
    for frame in (one for one in slide.iter() if one.tag.endswith(("txBody", "}rich"))):
        assert frame[0].tag == f"{DRAWING}bodyPr" and frame.find(f"{DRAWING}p") is not None
    for paragraph in slide.iter(f"{DRAWING}p"):
        order = [["pPr", "r", "endParaRPr"].index(one.tag.split("}")[1].replace("br", "r")) for one in paragraph]
        assert order == sorted(order) and order.count(0) <= 1
    for one in slide.iter(f"{DRAWING}srgbClr"):
        assert re.fullmatch(r"[0-9A-Fa-f]{6}", one.get("val", ""))
    for one in slide.iter(f"{DRAWING}ext"):
        assert one.get("uri") or (int(one.get("cx", "-1")) >= 0 and int(one.get("cy", "-1")) >= 0)
    for one in slide.iter():
        assert one.get("sz") is None or not one.tag.endswith("Pr") or 100 <= int(one.get("sz", "0")) <= 400_000


@needs_browser
def test_the_talk_opens_alive(story: Story, lineage: Lineage, page: Any, tmp_path: Path):
    (tmp_path / "talk.html").write_bytes(deck(story))
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto((tmp_path / "talk.html").as_uri())
    assert page.locator("#slide-0 td").all_inner_texts()[3].startswith("</script><b>")
    page.keyboard.press("ArrowRight")
    strip = page.locator("#slide-1 .kv-strip")
    steps = lineage.steps.tolist()
    strip.locator("[data-part='slider']").focus()
    page.keyboard.press("Home")
    for at in (0, 1):
        slots = int(lineage.alive(steps[at]).sum())
        assert strip.get_attribute("data-slots") == str(slots) and strip.get_attribute("data-step") == str(steps[at])
        page.keyboard.press("ArrowRight")
    strip.locator(".t[data-p='5']").hover()
    assert strip.locator(".detail strong").inner_text().startswith("5 “")
    page.keyboard.press("PageDown")
    page.locator("#slide-2 .t[data-p='4']").hover()
    assert page.locator("#slide-2 .detail strong").inner_text().startswith("4 “")
    page.keyboard.press("ArrowRight")
    assert "48213." in page.locator("#slide-3").inner_text() and page.evaluate("document.body.dataset.at") == "4"
    for width, height in ((1280, 720), (1024, 768), (853, 480), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        for at in (1, 2, 4):
            page.evaluate(f"show({at - 1})")
            foot = page.locator("section.shown footer").bounding_box()
            assert foot["y"] + foot["height"] <= height + 1 and page.evaluate("document.body.scrollHeight") <= height
    assert not failed


@needs_browser
@needs_office
def test_a_printed_talk_has_a_page_a_slide(story: Story, writer: ImageWriter, tmp_path: Path):
    (tmp_path / "talk.pdf").write_bytes(export_talk(story, "pdf", writer))
    told = subprocess.run(["pdftotext", "-layout", tmp_path / "talk.pdf", "-"], check=True, capture_output=True)
    pages = told.stdout.decode().split("\f")[:-1]
    assert len(pages) in (len(story.views), len(story.views) + 1), "only the long table may need a second page"
    for one, said in zip(story.views, pages, strict=False):
        assert one.title in said
    assert all(str(row) in "".join(pages[6:]) for row in range(23)), "a row of the long table is cut"
    subprocess.run(
        ["pdftoppm", "-r", "20", "-f", "5", "-l", "5", "-png", tmp_path / "talk.pdf", tmp_path / "p"], check=True
    )
    lines = np.asarray(Image.open(next(tmp_path.glob("p*.png"))).convert("L"), float)
    assert lines[:, lines.shape[1] // 2 :].std() > 3, "the chart does not fill its page"


@needs_browser
@needs_office
def test_an_office_program_shows_every_slide(story: Story, writer: ImageWriter, tmp_path: Path):
    pytest.importorskip("pptx", reason="needs kvlab[slides]")
    (tmp_path / "talk.pptx").write_bytes(export_talk(story, "pptx", writer))
    office = ["soffice", "--headless", f"-env:UserInstallation=file://{tmp_path}/profile", "--convert-to", "pdf"]
    subprocess.run(
        [*office, "--outdir", tmp_path, tmp_path / "talk.pptx"], check=True, capture_output=True, timeout=120
    )
    told = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "talk.pdf", "-"], check=True, capture_output=True, text=True
    )
    pages = told.stdout.split("\f")[:-1]
    assert len(pages) == len(story.views) + 1
    titles = ["Table", "Hero", "Text", "Texts", "Lines", "Heat", "Many", "Many"]
    for title, said in zip(titles, pages, strict=True):
        assert title in said and "It shows." in said and "layer 3, head 1" in said
    assert "48213." in pages[3] and "</script><b>bold</b>" in pages[3]
    subprocess.run(["pdftoppm", "-r", "30", "-png", tmp_path / "talk.pdf", tmp_path / "slide"], check=True, timeout=60)
    for file in sorted(tmp_path.glob("slide-*.png")):
        seen = np.asarray(Image.open(file).convert("L"), float)
        assert seen[seen.shape[0] // 5 : -seen.shape[0] // 5].std() > 3, f"{file.name} is blank in its middle"
        assert (seen[:, -2:] > 250).all() and (seen[-2:] > 250).all(), f"{file.name} runs over its edge"
