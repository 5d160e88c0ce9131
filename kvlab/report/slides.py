"""A report as slides (PPTX): a title and picture each, tables as tables, where it came from in the notes.

Needs `pip install 'kvlab[slides]'`: python-pptx with lxml and XlsxWriter, about 18 MB; imported when slides are asked
for, which takes .3 s.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from kvlab.errors import UserError
from kvlab.figures.export import Section
from kvlab.report.contents import Report
from kvlab.report.deck import NO_FIGURE, figure_of
from kvlab.trace.stories import Story

MISSING = "Slides need python-pptx: pip install 'kvlab[slides]', or take the HTML or the PDF."
WIDTH, HEIGHT, EDGE = 13.333, 7.5, 0.5  # inches, 16:9
TITLE_HEIGHT, READING_HEIGHT = 0.9, 0.8
MOST_ROWS, MOST_SIGNS, LINES_A_SLIDE = 10, 900, 6

Draw = Callable[[Section], bytes]


def slides(report: Report, draw: Draw) -> bytes:
    """The slides; `draw` makes a PNG of a figure.

    Raises:
        UserError: python-pptx is not installed.
    """
    deck = _empty()
    _listed(deck, report.title, [f"“{report.question}”", *report.lines[:4]], report.origin)
    for rows in _chunks(report.table, MOST_ROWS):
        _table(deck, "Runs", rows, report.origin)
    for section in report.figures:
        _figure(deck, section, draw(section))
    if len(report.settings):
        for rows in _chunks(report.settings.reset_index(), MOST_ROWS):
            _table(deck, "What differs between the runs", rows, report.origin)
    for label, segments in report.texts:
        text = "".join(segment.text for segment in segments if segment.kind != "missing")
        _listed(deck, f"What {label} wrote", [text[:MOST_SIGNS]], report.origin)
    for start in range(0, len(report.distrust), LINES_A_SLIDE):
        lines = report.distrust[start : start + LINES_A_SLIDE]
        _listed(deck, "What to distrust", lines, report.origin)
    return _saved(deck)


def story_slides(story: Story, draw: Draw) -> bytes:
    """The slides of a story: each its figure with its caption, else its reading; raises as `slides`."""
    deck = _empty()
    for view in story.views:
        if view.slide is None:
            _listed(deck, view.title, [view.caption or NO_FIGURE.format(view.title)], "")
            continue
        section = Section(figure_of(view), view.caption or view.slide.reading, view.slide.source)
        _figure(deck, section, draw(section), view.title)
    return _saved(deck)


def _empty() -> Any:
    try:
        from pptx import Presentation
    except ImportError as error:
        raise UserError(MISSING) from error
    deck = Presentation()
    deck.slide_width, deck.slide_height = _inches(WIDTH, HEIGHT)
    return deck


def _saved(deck: Any) -> bytes:
    saved = io.BytesIO()
    deck.save(saved)
    return saved.getvalue()


def _chunks(table: pd.DataFrame, most: int) -> list[pd.DataFrame]:
    return [table.iloc[start : start + most] for start in range(0, len(table), most)]


def _slide(deck: Any, title: str, origin: str) -> Any:
    """An empty slide with its title; where it came from stands in the notes."""
    slide = deck.slides.add_slide(deck.slide_layouts[5])  # a title and nothing else
    box = slide.shapes.title
    box.left, box.top, box.width, box.height = _inches(EDGE, 0.25, WIDTH - 2 * EDGE, TITLE_HEIGHT)
    box.text_frame.text = title
    _sized(box.text_frame, 28, bold=True)
    slide.notes_slide.notes_text_frame.text = origin
    return slide


def _listed(deck: Any, title: str, lines: Sequence[str], origin: str) -> None:
    slide = _slide(deck, title, origin)
    top = TITLE_HEIGHT + 0.4
    box = slide.shapes.add_textbox(*_inches(EDGE, top, WIDTH - 2 * EDGE, HEIGHT - top - EDGE))
    frame = box.text_frame
    frame.word_wrap = True
    frame.text = lines[0] if lines else ""
    for line in lines[1:]:
        frame.add_paragraph().text = line
    signs = sum(map(len, lines))
    _sized(frame, 20 if signs < 700 else 16 if signs < 1200 else 13)


def _table(deck: Any, title: str, rows: pd.DataFrame, origin: str) -> None:
    slide = _slide(deck, title, origin)
    size = _inches(EDGE, TITLE_HEIGHT + 0.5, WIDTH - 2 * EDGE, 0.4 * (len(rows) + 1))
    grid = slide.shapes.add_table(len(rows) + 1, len(rows.columns), *size).table
    for column, name in enumerate(rows.columns):
        for row, value in enumerate([name, *rows[name]]):
            cell = grid.cell(row, column)
            cell.text = str(value)
            _sized(cell.text_frame, 14 if len(rows.columns) < 8 else 11, bold=not row)


def _figure(deck: Any, section: Section, picture: bytes, title: str = "") -> None:
    """The figure at its own proportions, as large as there is room, and its reading under it."""
    slide = _slide(deck, title or str(section.figure.layout.title.text or "Figure"), section.source)
    top, room = TITLE_HEIGHT + 0.3, HEIGHT - TITLE_HEIGHT - 0.3 - READING_HEIGHT - 0.2
    shown = slide.shapes.add_picture(io.BytesIO(picture), *_inches(EDGE, top))
    factor = min((WIDTH - 2 * EDGE) * 914_400 / shown.width, room * 914_400 / shown.height)
    shown.width, shown.height = int(shown.width * factor), int(shown.height * factor)
    shown.left = int((WIDTH * 914_400 - shown.width) / 2)
    shown._element.nvPicPr.cNvPr.set("descr", section.reading)
    box = slide.shapes.add_textbox(*_inches(EDGE, HEIGHT - READING_HEIGHT - 0.1, WIDTH - 2 * EDGE, READING_HEIGHT))
    box.text_frame.word_wrap = True
    box.text_frame.text = section.reading
    _sized(box.text_frame, 16 if len(section.reading) < 260 else 12)


def _sized(frame: Any, points: int, bold: bool = False) -> None:
    from pptx.util import Pt

    for paragraph in frame.paragraphs:
        paragraph.font.size, paragraph.font.bold = Pt(points), bold


def _inches(*numbers: float) -> tuple[Any, ...]:
    from pptx.util import Inches

    return tuple(Inches(number) for number in numbers)
