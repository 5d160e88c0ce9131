"""A story as a talk in one self-contained, interactive HTML file with keyboard navigation.

Right, Page Down, space: next; left, Page Up: previous; Home, End; F: full screen; N: show or hide the origin of a
slide. While an element of a slide has the focus, such as a scrubber, it receives the keys except Page Up and Down;
Escape releases them. A slide fills the window at any aspect ratio; the next figure is drawn in advance.
"""

import html
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.report.interactive import PARTS, STYLES, data, markup
from kvlab.report.pictures import PICTURED
from kvlab.report.views import Passages, Shown, Table, parse_shown
from kvlab.trace.stories import Story, View
from kvlab.views.base import FONT, GRID, HUES, INK, KEEPS_HEIGHT, PLOTLY_CONFIG, QUIET, SURFACES, THEMES, Theme, pick
from kvlab.views.base.export import decode_arrays
from kvlab.views.base.thumbnail import HEIGHT, OPENING, WIDTH, blank, thumbnail

FONT_SIZE = 15  # legible from the back of a room
STATIC = Path(__file__).parent / "static"
NO_FIGURE = "A view of the page {} without a picture: open it in kvlab and add its figures."


def deck(story: Story) -> bytes:
    """The talk as HTML (UTF-8).

    Raises:
        UserError: the story has no views, or a slide cannot be read.
    """
    if not story.views:
        raise UserError("This story has no views yet: add figures to it from their menus.")
    shown = [content(view) for view in story.views]
    kinds = {type(one) for one in shown if isinstance(one, Shown)}
    given = [_given(one, view, at) for at, (one, view) in enumerate(zip(shown, story.views, strict=True))]
    slides = ""
    words = html.escape
    for at, (view, one) in enumerate(zip(story.views, shown, strict=True)):
        slide = view.slide
        theme = slide.theme if slide else "light"
        inside = markup(one, theme) if isinstance(one, Shown) else f'<div class="chart" id="chart-{at}"></div>'
        if one is None:
            inside = f'<p class="nothing">{words(missing_picture_text(view))}</p>'
        long = " long" if isinstance(one, (Table, Passages)) else ""  # may take more than a page on paper
        subject = words(slide.of) if slide else ""
        source = words(slide.source) if slide else ""
        place = f"{at + 1} / {len(story.views)}"
        slides += (
            f'<section id="slide-{at}" class="{theme}{long}"><h1>{words(view.title)}</h1>'
            f'<div class="figure" id="figure-{at}">{inside}</div><p>{words(slide_text(view))}</p>'
            f'<footer><span>{subject}<span class="source">{source}</span></span><span>{place}</span></footer></section>'
        )
    # The components' own styles, and a script that defines `views`: by name of `PARTS` what mounts the view.
    styles = "\n".join(read_static(*STYLES[kind]) for kind in PICTURED if kind in kinds)
    script = read_static("talk-views.js") if kinds & PARTS.keys() else "const views = {};"
    layout = (STATIC / "deck.css").read_text(encoding="utf-8")
    # Colours of both themes under the names that the dashboard's components use.
    colours = "".join(
        f".{theme} {{ --ground: {SURFACES[theme]}; --ink: {INK[theme]}; --st-text-color: {INK[theme]}; "
        f"--st-font: {FONT}; --st-background-color: {SURFACES[theme]}; "
        f"--st-secondary-background-color: {GRID[theme]}66; "
        f"--st-primary-color: {pick(HUES['orange'], theme)}; --st-border-color: {QUIET[theme]}55; }}\n"
        for theme in THEMES
    )
    data_text = json.dumps(given).replace("</", "<\\/")  # `</` would end the script
    parts = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(story.name)}</title>',
        f"<style>{colours}{styles}{layout}</style>",
        f"<main>{slides}</main>",
        f"<script>{get_plotlyjs()}</script>" if any(isinstance(one, go.Figure) for one in shown) else "",
        f"<script>{script}</script>",
        f"<script>const given = {data_text};{(STATIC / 'deck.js').read_text(encoding='utf-8')}</script></html>",
    )
    return "\n".join(parts).encode()


def view_thumbnail(view: View) -> str:
    """A small SVG (240 x 120) of a view for lists: the marks of a figure, a placeholder for what has none."""
    theme: Theme = view.slide.theme if view.slide else "light"
    try:
        if view.slide is None or view.slide.kind != "figure":
            shown = content(view)
            return blank("a page" if shown is None else "a table" if isinstance(shown, Table) else "a text", theme)
        drawn = thumbnail(go.Figure(decode_arrays(json.loads(view.slide.figure)), skip_invalid=True), theme)
    except (UserError, ValueError, TypeError, KeyError):
        return blank("damaged", theme)
    # The slide's own ground, because its marks may not be seen on that of the page.
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{SURFACES[theme]}"/>'
    return f"{OPENING}{ground}{drawn.removeprefix(OPENING)}"


def content(view: View) -> go.Figure | Shown | None:
    """Content of a slide; None for a view of a page. Raises UserError if it cannot be read."""
    if view.slide is None:
        return None
    if view.slide.kind != "figure":
        return parse_shown(view)
    try:
        return go.Figure(**json.loads(view.slide.figure))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"The figure of the slide {view.title[:60]!r} is damaged: add it again.") from error


def remove_title(figure: go.Figure) -> go.Figure:
    """The figure without title and its margin, because the slide has a title; it is as much lower."""
    before = figure.layout.margin.t
    after = 40 if figure.layout.annotations else 24
    if figure.layout.height and before is not None:
        figure.layout.height -= before - after
    return figure.update_layout(title=None, margin_t=after)


def slide_text(view: View) -> str:
    """Text of a slide: the view's own caption, else the figure's."""
    return view.caption or (view.slide.caption if view.slide else "")


def missing_picture_text(view: View) -> str:
    """Text shown for a view without a picture."""
    where = ", ".join(f"{name} {value}" for name, value in view.query.items())
    return NO_FIGURE.format(view.title) + (f" It shows {where}." if where else "")


def _given(shown: go.Figure | Shown | None, view: View, at: int) -> dict[str, Any] | None:
    """What the script of a slide reads as JSON; None if it has no script."""
    if shown is None or view.slide is None:
        return None
    if isinstance(shown, Shown):
        return data(shown, view.slide.theme, str(at))
    figure = remove_title(shown)
    least = figure.layout.height if (figure.layout.meta or {}).get(KEEPS_HEIGHT) else None
    figure.update_layout(height=None, width=None, autosize=True)
    figure.update_layout(font_size=FONT_SIZE, legend_font_size=FONT_SIZE)
    figure.update_xaxes(tickfont_size=FONT_SIZE, title_font_size=FONT_SIZE)
    figure.update_yaxes(tickfont_size=FONT_SIZE, title_font_size=FONT_SIZE)
    figure.update_layout(paper_bgcolor=SURFACES[view.slide.theme])
    config = PLOTLY_CONFIG | {"displayModeBar": False}
    return {"view": "figure", "config": config, "least": least} | json.loads(figure.to_json())
