"""A small picture of a story's view, for lists: the marks of a figure, or the first words of a table or text."""

import json

import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.report.deck import content
from kvlab.report.pictures import Drawing
from kvlab.report.views import History, Passages, Shown, Table, Text
from kvlab.trace.stories import View
from kvlab.views.base.export import decode_arrays
from kvlab.views.base.palette import SURFACES, Theme
from kvlab.views.base.template import GRID, INK, QUIET
from kvlab.views.base.thumbnail import EDGE, HEIGHT, OPENING, WIDTH, blank, thumbnail

# pixels: size, distance of lines, width of a character
FONT = 10
LINE = 17
CHARACTER = 5.6
MOST_TOKENS = 200  # of a text, whose first words are drawn


def view_thumbnail(view: View) -> str:
    """The SVG (240 x 120) of a view; a placeholder for one without a slide, or with a damaged one."""
    theme: Theme = view.slide.theme if view.slide else "light"
    try:
        if view.slide is not None and view.slide.kind == "figure":
            drawn = thumbnail(go.Figure(decode_arrays(json.loads(view.slide.figure)), skip_invalid=True), theme)
            # The slide's own ground, because its marks may not be seen on that of the page.
            ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{SURFACES[theme]}"/>'
            return f"{OPENING}{ground}{drawn.removeprefix(OPENING)}"
        shown = content(view)
    except (UserError, ValueError, TypeError, KeyError):
        return blank("damaged", theme)
    return blank("a page", theme) if not isinstance(shown, Shown) else _words(lines_of(shown), theme)


def lines_of(shown: Shown) -> list[list[str]]:
    """The first lines of a table, by cells, or of a text."""
    most = HEIGHT // LINE
    if isinstance(shown, Table):
        return [list(row) for row in (shown.columns, *shown.rows[: most - 1])]
    if isinstance(shown, Passages):
        texts = ["".join(text for _, text in segments) for _, segments in shown.passages]
        return [[text] for text in _wrapped(" ".join(texts), most)]
    if isinstance(shown, Text | History):
        return [[text] for text in _wrapped("".join(shown.texts[:MOST_TOKENS]), most)]
    return []


def _wrapped(text: str, most: int) -> list[str]:
    """The first `most` lines of a text."""
    across = int((WIDTH - 2 * EDGE) / CHARACTER)
    words = " ".join(text[: 40 * most * 2].split())
    return [words[start : start + across] for start in range(0, min(len(words), across * most), across)]


def _words(lines: list[list[str]], theme: Theme) -> str:
    """The lines as SVG, cells of one row in columns of equal width; the first row of a table is set off."""
    drawing = Drawing(WIDTH, HEIGHT, SURFACES[theme])
    columns = max(1, min(4, max(map(len, lines), default=1)))
    wide = (WIDTH - 2 * EDGE) / columns
    for row, line in enumerate(lines):
        is_head = row == 0 and len(line) > 1
        for column, text in enumerate(line[:columns]):
            cut = text[: int(wide / CHARACTER)]
            drawing.write_text(
                EDGE + column * wide, EDGE + 10 + row * LINE, cut, FONT, QUIET[theme] if is_head else INK[theme]
            )
        if is_head:
            drawing.line(EDGE, EDGE + 14, WIDTH - EDGE, EDGE + 14, GRID[theme])
    return drawing.svg().decode()
