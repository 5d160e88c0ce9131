"""A report or story as PPTX slides, with origins in the notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from kvlab.report import slide_parts as parts
from kvlab.report.contents import Report
from kvlab.report.deck import content, missing_picture_text, slide_text
from kvlab.report.pictures import picture
from kvlab.report.views import Passages, Shown, Table, table_of
from kvlab.trace.stories import Story
from kvlab.views.base.caption import as_caption
from kvlab.views.base.palette import Theme

MOST_ROWS = 12
MOST_PASSAGES = 2
LINES_A_SLIDE = 6
Draw = Callable[[go.Figure | bytes, Theme], parts.Picture]


def slides(report: Report, draw: Draw) -> bytes:
    """The report as slides; `draw` renders a figure or an SVG.

    Raises:
        UserError: python-pptx is not installed.
    """
    deck = parts.empty_deck()
    notes = report.provenance
    first, *more = _chunks([f"“{report.question}”", *report.lines], LINES_A_SLIDE)
    parts.add_lines(deck, report.title, first, notes)
    for lines in more:
        parts.add_lines(deck, f"{report.title}, continued", lines, notes)
    for rows in _chunks(report.table, MOST_ROWS):
        parts.add_table(deck, "Runs", table_of(rows), notes)
    for section in report.figures:
        title = str(section.figure.layout.title.text or "Figure")
        add_figure(deck, title, section.figure, section.caption, report.of, f"{section.source}\n{notes}", draw)
    if len(report.settings):
        for rows in _chunks(report.settings.reset_index(), MOST_ROWS):
            parts.add_table(deck, "Different settings", table_of(rows), notes)
    for label, segments in report.texts:
        parts.add_passages(deck, f"Text of {label}", [("", segments)], "", report.of, notes)
    for lines in _chunks(report.distrust, LINES_A_SLIDE):
        parts.add_lines(deck, "Caveats", lines, notes)
    return parts.saved_deck(deck)


def story_slides(story: Story, draw: Draw) -> bytes:
    """The slides of a story, each with its view's own caption, else its figure's; raises as `slides`."""
    deck = parts.empty_deck()
    for view in story.views:
        shown = content(view)
        words = slide_text(view)
        if shown is None or view.slide is None:
            parts.add_lines(deck, view.title, [line for line in (words, missing_picture_text(view)) if line], "")
            continue
        of = view.slide.of
        notes = view.slide.source
        theme = view.slide.theme
        if isinstance(shown, Table):
            for part, rows in enumerate(_batches(shown.rows, MOST_ROWS)):
                more = f"{shown.left_out:,} more rows are omitted. " if shown.left_out and not part else ""
                note = as_caption(words).within(before=more)
                parts.add_table(deck, view.title, shown.model_copy(update={"rows": rows}), notes, note, of, theme)
        elif isinstance(shown, Passages):
            for some in _batches(shown.passages, MOST_PASSAGES):
                parts.add_passages(deck, view.title, some, words, of, notes, theme)
        else:
            add_figure(deck, view.title, shown, words, of, notes, draw, theme)
    return parts.saved_deck(deck)


def _chunks(rows: Any, most: int) -> list[Any]:
    """Slices of at most so many lines of text or rows of a table."""
    return [rows[start : start + most] for start in range(0, len(rows), most)]


def _batches(rows: Sequence[Any], most: int) -> list[tuple[Any, ...]]:
    """At least one batch, so that an empty table also gets a slide."""
    return [tuple(rows[start : start + most]) for start in range(0, max(1, len(rows)), most)]


def add_figure(
    deck: Any,
    title: str,
    shown: go.Figure | Shown,
    caption: str,
    of: str,
    notes: str,
    draw: Draw,
    theme: Theme = "light",
) -> None:
    """Add a picture of the figure with its caption."""
    slide = parts.add_slide(deck, title, notes, theme)
    top = parts.TITLE_HEIGHT + 0.25
    room = parts.HEIGHT - top - parts.CAPTION_HEIGHT - parts.OF_HEIGHT - 0.2
    drawn = draw(shown if isinstance(shown, go.Figure) else picture(shown, theme), theme)
    parts.add_picture(slide, drawn, top, room, caption)
    parts.add_caption(slide, caption, of, theme)
