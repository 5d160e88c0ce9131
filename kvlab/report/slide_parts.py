"""A report or story as PPTX slides: title, notes with origins, text, editable tables, marked texts, pictures.

Needs `pip install 'kvlab[slides]'` (python-pptx with lxml and XlsxWriter, 18 MB); imported when needed, in .3 s.
"""

import io
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.report.contents import Report
from kvlab.report.deck import content, missing_picture_text, slide_text
from kvlab.report.pictures import NOT_XML, picture
from kvlab.report.views import Passages, Shown, Table, table_of
from kvlab.trace.stories import Story
from kvlab.views.base import HUES, INK, QUIET, SURFACES, Theme, pick
from kvlab.views.frames.textdiff import Segment

MISSING = "Slides need python-pptx: pip install 'kvlab[slides]', or export HTML or PDF instead."
# inches, 16:9
WIDTH = 13.333
HEIGHT = 7.5
EDGE = 0.5
INCH = 914_400  # EMU
TITLE_HEIGHT = 0.8
CAPTION_HEIGHT = 1.0
OF_HEIGHT = 0.35
# character width relative to the font size; line height in inches per point
CHARACTER = 0.58
LEADING = 1.25 / 72
MARKED = "Orange: only this run wrote it. Struck out: only the full cache did."
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SVG_BESIDE = (
    f'<a:extLst xmlns:a="{DRAWING}"><a:ext uri="{{{{96DAC541-7B7A-43D3-8B79-37D633B846F1}}}}">'
    '<asvg:svgBlip xmlns:asvg="http://schemas.microsoft.com/office/drawing/2016/SVG/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" r:embed="{}"/></a:ext></a:extLst>'
)


class Picture(NamedTuple):
    """A picture at twice its size, and as SVG if that is small."""

    png: bytes
    svg: bytes | None = None


def why_no_slides() -> str:
    """Why slides cannot be made here, in a sentence that says what to do; empty if they can."""
    return "" if find_spec("pptx") else MISSING


def empty_deck() -> Any:
    """An empty 16:9 deck; raises UserError if python-pptx is not installed."""
    if why := why_no_slides():
        raise UserError(why)
    from pptx import Presentation

    deck = Presentation()
    deck.slide_width, deck.slide_height = inches(WIDTH, HEIGHT)
    return deck


def saved_deck(deck: Any) -> bytes:
    """The deck as a file."""
    held = io.BytesIO()
    deck.save(held)
    return held.getvalue()


def add_slide(deck: Any, title: str, notes: str, theme: Theme = "light") -> Any:
    """Add an empty slide with a title and its origin in the notes."""
    from pptx.enum.text import PP_ALIGN

    slide = deck.slides.add_slide(deck.slide_layouts[5])  # title only
    slide.background.fill.solid()
    slide.background.fill.fore_color.rgb = _rgb(SURFACES[theme])
    box = slide.shapes.title
    box.left, box.top, box.width, box.height = inches(EDGE, 0.2, WIDTH - 2 * EDGE, TITLE_HEIGHT)
    box.text_frame.word_wrap = True
    box.text_frame.text = clean(title)
    _sized(box.text_frame, 28 if len(title) < 60 else 22 if len(title) < 110 else 16, theme, bold=True)
    for paragraph in box.text_frame.paragraphs:
        paragraph.alignment = PP_ALIGN.LEFT
    slide.notes_slide.notes_text_frame.text = clean(notes)
    return slide


def add_lines(deck: Any, title: str, lines: Sequence[str], notes: str) -> None:
    """Add a slide of sentences."""
    slide = add_slide(deck, title, notes)
    top = TITLE_HEIGHT + 0.4
    signs = sum(map(len, lines))
    add_words(slide, lines, top, HEIGHT - top - EDGE, 20 if signs < 700 else 16 if signs < 1200 else 13)


def add_words(
    slide: Any,
    lines: Sequence[str],
    top: float,
    height: float,
    points: int,
    theme: Theme = "light",
    quiet: bool = False,
) -> Any:
    """Add lines of text across the slide; returns their text frame."""
    box = slide.shapes.add_textbox(*inches(EDGE, top, WIDTH - 2 * EDGE, height))
    frame = box.text_frame
    frame.word_wrap = True
    frame.text = clean(lines[0]) if lines else ""
    for line in lines[1:]:
        frame.add_paragraph().text = clean(line)
    _sized(frame, points, theme, quiet=quiet)
    return frame


def add_caption(slide: Any, caption: str, source: str, theme: Theme) -> None:
    """Add the caption at the bottom in the largest font that fits, with its `source` in small print."""
    width = WIDTH - 2 * EDGE - 0.2
    room = CAPTION_HEIGHT - 0.1
    points = next((size for size in range(16, 7, -1) if (_lines(caption, width, size) - 1) * size * LEADING <= room), 7)
    add_words(slide, [caption], HEIGHT - CAPTION_HEIGHT - OF_HEIGHT - 0.1, CAPTION_HEIGHT, points, theme)
    if source:
        add_words(
            slide, [source], HEIGHT - OF_HEIGHT - 0.1, OF_HEIGHT, 11 if len(source) < 150 else 9, theme, quiet=True
        )


def add_table(
    deck: Any, title: str, table: Table, notes: str, caption: str = "", subject: str = "", theme: Theme = "light"
) -> None:
    """Add a slide with an editable table in the largest font that fits."""
    slide = add_slide(deck, title, notes, theme)
    if not table.columns:
        add_words(slide, [caption or "An empty table."], TITLE_HEIGHT + 0.5, 1.0, 16, theme)
        return
    rows = len(table.rows) + 1
    # Column widths in inches, by their longest cells and a cell's margins.
    columns = zip(table.columns, *table.rows, strict=True)
    longest = [3 + max(4, *(min(len(cell), 60) for cell in cells)) for cells in columns]
    across = WIDTH - 2 * EDGE
    widths = [min(across, across * signs / sum(longest)) for signs in longest]
    # The largest font in which the rows, with wrapped cells, are no higher than the slide.
    room = HEIGHT - TITLE_HEIGHT - 0.5 - (CAPTION_HEIGHT + OF_HEIGHT + 0.2 if caption or subject else EDGE)
    for points in range(16, 6, -1):
        sign = points * CHARACTER / 72
        lines = [
            max(math.ceil(len(cell) * sign / (wide - 0.2)) for cell, wide in zip(row, widths, strict=True))
            for row in (table.columns, *table.rows)
        ]
        if sum(max(1, count) * points * LEADING + 0.08 for count in lines) <= room:
            break
    size = inches(EDGE, TITLE_HEIGHT + 0.4, sum(widths), 0.3 * rows)
    grid = slide.shapes.add_table(rows, len(table.columns), *size).table
    for column, wide in enumerate(widths):
        grid.columns[column].width = inches(wide)[0]
    for row, cells in enumerate((table.columns, *table.rows)):
        grid.rows[row].height = inches(0.3)[0]
        for column, text in enumerate(cells):
            cell = grid.cell(row, column)
            cell.margin_top = cell.margin_bottom = inches(0.03)[0]
            cell.text = clean(text)
            _sized(cell.text_frame, points, bold=not row, plain=True)
    if caption or subject:
        add_caption(slide, caption, subject, theme)


def add_passages(
    deck: Any,
    title: str,
    passages: Sequence[tuple[str, Sequence[Segment]]],
    caption: str,
    subject: str,
    notes: str,
    theme: Theme = "light",
) -> None:
    """Add a slide with texts side by side: orange is only in the run's text, struck out only in the full cache's."""
    slide = add_slide(deck, title, notes, theme)
    top = TITLE_HEIGHT + 0.3
    high = HEIGHT - top - CAPTION_HEIGHT - OF_HEIGHT - 0.2
    wide = (WIDTH - 2 * EDGE) / max(1, len(passages))
    for place, (label, segments) in enumerate(passages):
        box = slide.shapes.add_textbox(*inches(EDGE + place * wide, top, wide, high))
        frame = box.text_frame
        frame.word_wrap = True
        # The largest font in which the text fits, else as much of it as fits in the smallest.
        width = wide - 0.3
        height = high - 0.2
        whole = "".join(text for _, text in segments)
        points = next((size for size in range(18, 7, -1) if _lines(whole, width, size) * size * LEADING <= height), 7)
        left = len(whole) if points > 7 else int(0.8 * height / (points * LEADING) * width * 72 / (points * CHARACTER))
        paragraph = frame.paragraphs[0]
        if label:
            _run(paragraph, label, points, INK[theme], bold=True)
            paragraph = frame.add_paragraph()
        for kind, text in segments:
            colour = {"own": HUES["red"], "missing": (QUIET["light"], QUIET["dark"])}.get(kind)
            ink = INK[theme] if colour is None else pick(colour, theme)
            for number, line in enumerate(text[: max(0, left)].split("\n")):
                if number:
                    paragraph = frame.add_paragraph()
                _run(paragraph, line, points, ink, bold=kind == "own", struck=kind == "missing")
            left -= len(text)
        if left < 0:
            _run(frame.add_paragraph(), f"… and {-left:,} more characters", points, QUIET[theme])
    add_caption(slide, caption or MARKED, subject, theme)


def _lines(text: str, width: float, points: int) -> int:
    """Approximate number of lines of a text, including its label."""
    across = max(1, int(width * 72 / (points * CHARACTER)))
    return 1 + sum(max(1, math.ceil(len(line) / across)) for line in text.split("\n"))


def _run(paragraph: Any, text: str, points: int, ink: str, bold: bool = False, struck: bool = False) -> None:
    from pptx.util import Pt

    run = paragraph.add_run()
    run.text = clean(text)
    run.font.size = Pt(points)
    run.font.bold = bold
    run.font.color.rgb = _rgb(ink)
    if struck:
        run._r.get_or_add_rPr().set("strike", "sngStrike")


def _sized(
    frame: Any, points: int, theme: Theme = "light", bold: bool = False, quiet: bool = False, plain: bool = False
) -> None:
    """Set the font of a frame; `plain` keeps the default colour, as tables have their own backgrounds."""
    from pptx.util import Pt

    for paragraph in frame.paragraphs:
        paragraph.font.size = Pt(points)
        paragraph.font.bold = bold
        if not plain:
            paragraph.font.color.rgb = _rgb((QUIET if quiet else INK)[theme])


def _rgb(colour: str) -> Any:
    from pptx.dml.color import RGBColor

    return RGBColor.from_string(colour.lstrip("#"))


def clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return NOT_XML.sub("\ufffd", text)


def inches(*numbers: float) -> tuple[Any, ...]:
    """Lengths in inches as python-pptx takes them."""
    from pptx.util import Inches

    return tuple(Inches(number) for number in numbers)


MOST_ROWS = 12
MOST_PASSAGES = 2
LINES_A_SLIDE = 6
Draw = Callable[[go.Figure | bytes, Theme], Picture]


def slides(report: Report, draw: Draw) -> bytes:
    """The report as slides; `draw` renders a figure or an SVG.

    Raises:
        UserError: python-pptx is not installed.
    """
    deck = empty_deck()
    notes = report.provenance
    first, *more = _chunks([f"“{report.question}”", *report.lines], LINES_A_SLIDE)
    add_lines(deck, report.title, first, notes)
    for lines in more:
        add_lines(deck, f"{report.title}, continued", lines, notes)
    for rows in _chunks(report.table, MOST_ROWS):
        add_table(deck, "Runs", table_of(rows), notes)
    for section in report.figures:
        title = str(section.figure.layout.title.text or "Figure")
        add_figure(deck, title, section.figure, section.caption, report.subject, f"{section.source}\n{notes}", draw)
    if len(report.settings):
        for rows in _chunks(report.settings.reset_index(), MOST_ROWS):
            add_table(deck, "Different settings", table_of(rows), notes)
    for label, segments in report.texts:
        add_passages(deck, f"Text of {label}", [("", segments)], "", report.subject, notes)
    for lines in _chunks(report.distrust, LINES_A_SLIDE):
        add_lines(deck, "Caveats", lines, notes)
    return saved_deck(deck)


def story_slides(story: Story, draw: Draw) -> bytes:
    """The slides of a story, each with its view's own caption, else its figure's; raises as `slides`."""
    deck = empty_deck()
    for view in story.views:
        shown = content(view)
        words = slide_text(view)
        if shown is None or view.slide is None:
            add_lines(deck, view.title, [line for line in (words, missing_picture_text(view)) if line], "")
            continue
        subject = view.slide.of
        notes = view.slide.source
        theme = view.slide.theme
        if isinstance(shown, Table):
            for part, rows in enumerate(_chunks(shown.rows, MOST_ROWS) or [()]):  # an empty table also gets a slide
                more = f"{shown.left_out:,} more rows are omitted. " if shown.left_out and not part else ""
                note = f"{more}{words}"
                add_table(deck, view.title, shown.model_copy(update={"rows": rows}), notes, note, subject, theme)
        elif isinstance(shown, Passages):
            for some in _chunks(shown.passages, MOST_PASSAGES) or [()]:
                add_passages(deck, view.title, some, words, subject, notes, theme)
        else:
            add_figure(deck, view.title, shown, words, subject, notes, draw, theme)
    return saved_deck(deck)


def _chunks(rows: Any, most: int) -> list[Any]:
    """Slices of at most so many lines of text or rows of a table."""
    return [rows[start : start + most] for start in range(0, len(rows), most)]


def add_figure(
    deck: Any,
    title: str,
    shown: go.Figure | Shown,
    caption: str,
    subject: str,
    notes: str,
    draw: Draw,
    theme: Theme = "light",
) -> None:
    """Add a picture of the figure, as large as possible at its aspect ratio, with its caption.

    Programs that support it show the SVG.
    """
    slide = add_slide(deck, title, notes, theme)
    top = TITLE_HEIGHT + 0.25
    room = HEIGHT - top - CAPTION_HEIGHT - OF_HEIGHT - 0.2
    drawn = draw(shown if isinstance(shown, go.Figure) else picture(shown, theme), theme)
    placed = slide.shapes.add_picture(io.BytesIO(drawn.png), *inches(EDGE, top))
    factor = min((WIDTH - 2 * EDGE) * INCH / placed.width, room * INCH / placed.height)
    placed.width = int(placed.width * factor)
    placed.height = int(placed.height * factor)
    placed.left = int((WIDTH * INCH - placed.width) / 2)
    placed._element.nvPicPr.cNvPr.set("descr", clean(caption))
    if drawn.svg is not None:
        # Attach an SVG to a picture by the extension that office programs since 2016 read.
        from pptx.opc.constants import RELATIONSHIP_TYPE
        from pptx.opc.package import Part
        from pptx.opc.packuri import PackURI
        from pptx.oxml import parse_xml

        name = PackURI(f"/ppt/media/vector{slide.slide_id}.svg")
        part = Part(name, "image/svg+xml", slide.part.package, drawn.svg)
        known = slide.part.relate_to(part, RELATIONSHIP_TYPE.IMAGE)
        placed._element.blipFill.find(f"{{{DRAWING}}}blip").append(parse_xml(SVG_BESIDE.format(known)))
    add_caption(slide, caption, subject, theme)
