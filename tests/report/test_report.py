"""A report opened again: what it says is what the runs hold, its pictures are not blank, its slides hold their text."""

from __future__ import annotations

import html as markup
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvlab.analysis.compare import headline
from kvlab.bench.modes.pages_server import BROWSERS
from kvlab.cli import commands
from kvlab.errors import UserError
from kvlab.figures.export import ImageWriter
from kvlab.figures.words import number
from kvlab.report.contents import Report, report
from kvlab.report.native import kind_of
from kvlab.report.page import page
from kvlab.report.slide_parts import Picture
from kvlab.report.slides import MOST_ROWS, slides
from kvlab.report.written import in_format, written
from kvlab.trace import open_run
from kvlab.trace.labels import Labels, save_answer
from kvlab.trace.reader import Run
from kvlab.trace.synthetic import write_synthetic_run

METHODS = ("full", "h2o", "keepkv")
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
    from kvlab.trace.labels import load_labels

    return report(runs, load_labels(root, "one"))


def test_it_says_what_the_runs_hold(told: Report, runs: list[Run]):
    table = headline(runs)
    assert told.table["run"].tolist() == table["label"].tolist()
    assert told.table["mean KL"].tolist() == [number(value) for value in table["mean_kl"]]
    assert told.question.endswith(" ".join(runs[0].record.prompt.split())[-40:])
    assert any(re.match(r"\d of 2 compressed runs get it right", line) for line in told.lines)
    assert len(told.figures) == 5 and all(section.reading and section.source for section in told.figures)
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
    from PIL import Image

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
    charts = [shape for slide in deck.slides for shape in slide.shapes if shape.has_chart]
    simple = [bool(kind_of(section.figure)) for section in told.figures]
    assert [len(charts), len(pictures)] == [sum(simple), len(simple) - sum(simple)] and any(simple) and not all(simple)
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
    assert all(section.reading in texts for section in told.figures)


@needs_browser
def test_pictures_of_slides_are_drawn_and_the_pdf_has_pages(told: Report, writer: ImageWriter):
    pptx = pytest.importorskip("pptx", reason="needs kvlab[slides]")
    from PIL import Image

    deck = pptx.Presentation(io.BytesIO(in_format(told, "pptx", writer)))
    for slide in deck.slides:
        for shape in slide.shapes:
            if shape.shape_type == 13:
                drawn = np.asarray(Image.open(io.BytesIO(shape.image.blob)).convert("L"))
                assert drawn.std() > 5, f"{slide.shapes.title.text} is blank"
    pdf = in_format(told, "pdf")
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000


def test_without_an_answer_it_says_so(runs: list[Run]):
    told = report(runs, Labels())
    assert any("Nobody said what the right answer is" in line for line in told.distrust)
    assert len(told.figures) == 4


def test_bad_input_is_one_sentence(root: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no compressed run"):
        report([open_run(next(root.glob("one*full*")))], Labels())
    with pytest.raises(UserError, match="There is no comparison"):
        written(root, "../one", "html")
    for words, named in (
        (("one", "--out", "x.docx"), "HTML, PPTX, PDF or GIF"),
        (("two", "--out", "x.html"), "no comparison"),
    ):
        with pytest.raises(UserError, match=named):
            commands(["report", *words, "--runs", str(root)], standalone_mode=False)
    commands(["report", "one", "--runs", str(root), "--out", str(tmp_path / "talk.html")], standalone_mode=False)
    assert (tmp_path / "talk.html").stat().st_size > 1_000_000
