"""A report opened again: what it says is what the runs hold, its pictures are not blank, its slides hold their text."""

from __future__ import annotations

import html as markup
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.report.contents import Report, report
from kvlab.report.export import export_report, render_report
from kvlab.report.page import page
from kvlab.report.slide_parts import MOST_ROWS, Picture, slides
from kvlab.trace import open_run
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels, save_answer
from kvlab.views.base.export import ImageWriter
from kvlab.views.base.words import number
from kvlab.views.frames.compare import headline
from tests.dashboard_speed.server import BROWSERS
from tests.synthetic.runs import write_synthetic_run

METHODS = ("full", "h2o", "keepkv")
needs_poppler = pytest.mark.skipif(not shutil.which("pdftotext"), reason="needs poppler-utils")
needs_browser = pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="needs Chromium")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        write_synthetic_run(
            root, method=method, comparison_id="one", title="Lamps & <b>harbours</b>", layers=1, heads=2
        )
    prompt = open_run(next(root.glob("one*full*"))).record
    save_answer(root, "one", prompt.prompt, prompt.forced_text.split()[0])
    return root


@pytest.fixture(scope="module")
def runs(root: Path) -> list[Run]:
    return [open_run(next(root.glob(f"one*{method}*"))) for method in METHODS]


@pytest.fixture(scope="module")
def told(root: Path, runs: list[Run]) -> Report:
    from kvlab.trace.user_labels import load_labels

    return report(runs, load_labels(root, "one"))


def test_it_says_what_the_runs_hold(told: Report, runs: list[Run]):
    table = headline(runs)
    assert told.table["run"].tolist() == table["label"].tolist()
    assert told.table["mean KL"].tolist() == [number(value) for value in table["mean_kl"]]
    assert told.question.endswith(" ".join(runs[0].record.prompt.split())[-40:])
    assert any(re.match(r"\d of 2 compressed runs get it right", line) for line in told.lines)
    assert len(told.figures) == 5 and all(section.caption and section.source for section in told.figures)
    assert any("one prompt" in line for line in told.distrust)
    own = {label: "".join(part.text for part in parts if part.kind != "missing") for label, parts in told.texts}
    assert list(own.values()) == [run.record.free_text for run in runs]


def test_the_page_needs_nothing_else_and_reads_no_markup_of_a_prompt(told: Report):
    text = page(told).decode()
    assert "<b>harbours</b>" not in text and markup.escape("<b>harbours</b>") in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=.?https?:", outside)
    assert text.count("Plotly.newPlot") >= 5 and text.count("plotly.js v") == 1
    for line in (*told.lines, *told.distrust):
        assert markup.escape(line) in text


def picture(*_: object) -> Picture:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 900, 3), np.uint8))
    saved = io.BytesIO()
    image.save(saved, "png")
    return Picture(saved.getvalue(), b'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="300"></svg>')


def test_slides_hold_all_of_it_inside_their_edges(told: Report, runs: list[Run]):
    records = [run.record for run in runs]
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    deck = pptx.Presentation(io.BytesIO(slides(told, picture)))
    titles = [slide.shapes.title.text for slide in deck.slides]
    assert titles[0] == told.title and titles.count("Runs") == -(-len(told.table) // MOST_ROWS)
    pictures = [shape for slide in deck.slides for shape in slide.shapes if shape.shape_type == 13]
    assert len(pictures) == len(told.figures) > 0
    assert all(abs(shape.width / shape.height - 3) < 0.01 for shape in pictures), "nothing is stretched"
    for slide in deck.slides:
        notes = slide.notes_slide.notes_text_frame.text
        assert "comparison one" in notes and all(record.run_id in notes for record in records)
        assert all(f"{name} {value}" in notes for name, value in records[-1].hyper_parameters.items())
        assert all(f"{name} {value}" in notes for name, value in records[-1].versions.items())
        for shape in slide.shapes:
            assert shape.left >= 0 and shape.top >= 0
            assert shape.left + shape.width <= deck.slide_width and shape.top + shape.height <= deck.slide_height
    texts = " ".join(shape.text_frame.text for slide in deck.slides for shape in slide.shapes if shape.has_text_frame)
    assert all(section.caption in texts for section in told.figures)


@needs_browser
def test_pictures_of_slides_are_drawn(told: Report, writer: ImageWriter):
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    deck = pptx.Presentation(io.BytesIO(render_report(told, "pptx", writer)))
    for slide in deck.slides:
        for shape in slide.shapes:
            if shape.shape_type == 13:
                drawn = np.asarray(Image.open(io.BytesIO(shape.image.blob)).convert("L"))
                assert drawn.std() > 5, f"{slide.shapes.title.text} is blank"


@pytest.fixture(scope="module")
def in_figures(told: Report, open_browser: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], float]:
    """The words in the page's figures and the pixels of the widest, opened without a network; none is blank or cut."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_bytes(page(told))
    shown: Any = open_browser.new_page(viewport={"width": 1280, "height": 900}, offline=True)
    failed: list[str] = []
    shown.on("pageerror", lambda error: failed.append(str(error)))
    shown.goto(file.as_uri())
    charts = "[...document.querySelectorAll('.js-plotly-plot')]"
    shown.wait_for_function(f"{charts}.filter(one => one.querySelector('.cartesianlayer .trace')).length === 5")
    over = "[...document.querySelectorAll('section')].some(one => one.scrollWidth > one.clientWidth)"
    assert not shown.evaluate(over) and not failed
    for width in (1280, 1024, 853):
        shown.set_viewport_size({"width": width, "height": 768})
        assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    said = shown.evaluate("[...document.querySelectorAll('.js-plotly-plot text')].map(one => one.textContent)")
    widest = shown.evaluate(f"Math.max(...{charts}.map(one => one.querySelector('.main-svg').clientWidth))")
    shown.close()
    return {word for text in said for word in text.split() if re.fullmatch(r"[\w.%]+", word)}, widest


@needs_browser
@needs_poppler
def test_on_paper_nothing_is_cut(root: Path, told: Report, in_figures: tuple[set[str], float], tmp_path: Path):
    file = tmp_path / "report.pdf"
    commands(["report", "one", "--runs", str(root), "--out", str(file)], standalone_mode=False)
    said = subprocess.run(["pdftotext", "-layout", file, "-"], check=True, capture_output=True, text=True).stdout
    words = " ".join(said.split())
    drawn, widest = in_figures
    assert len(drawn) > 20 and {word for word in drawn if word not in words} == set()
    told_of_it = subprocess.run(["pdfinfo", file], check=True, capture_output=True, text=True).stdout
    inches = float(re.search(r"Page size: +([\d.]+)", told_of_it)[1]) / 72
    assert 96 * inches > widest > 800, "a page has room for a figure"
    assert all(section.caption.split(".")[0] in words for section in told.figures)
    assert all(label in words for label in told.table["run"]) and "Caveats" in words
    subprocess.run(["pdftoppm", "-r", "30", "-gray", "-png", file, tmp_path / "page"], check=True)
    pages = [np.asarray(Image.open(one), float) for one in sorted(tmp_path.glob("page-*.png"))]
    assert len(pages) >= 2 and all(one.std() > 5 for one in pages), "no page is blank"
    assert all((one[:, -3:] > 250).all() for one in pages), "nothing runs over the edge of its page"


def test_without_an_answer_it_says_so(runs: list[Run]):
    told = report(runs, Labels())
    assert any("No expected answer was given" in line for line in told.distrust)
    assert len(told.figures) == 4


def test_bad_input_is_one_sentence(root: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no compressed run"):
        report([open_run(next(root.glob("one*full*")))], Labels())
    with pytest.raises(UserError, match="There is no comparison"):
        export_report(root, "../one", "html")
    for words, named in (
        (("one", "--out", "x.docx"), "HTML, PPTX, PDF or GIF"),
        (("two", "--out", "x.html"), "no comparison"),
    ):
        with pytest.raises(UserError, match=named):
            commands(["report", *words, "--runs", str(root)], standalone_mode=False)
    commands(["report", "one", "--runs", str(root), "--out", str(tmp_path / "talk.html")], standalone_mode=False)
    assert (tmp_path / "talk.html").stat().st_size > 1_000_000
