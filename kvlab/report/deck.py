"""A story as a talk in one HTML file: a slide a view, alive, led through by keys, without kvlab and without a network.

Right, Page Down, space: next; left, Page Up: previous; Home, End; F: full screen; N: hides or shows the figure's
origin. A slide fills the window at any proportions; the next slide's figure is drawn while the one before is looked at.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kvlab.errors import UserError
from kvlab.figures.palette import SURFACES, Theme
from kvlab.figures.template import FONT, INK
from kvlab.trace.stories import Story, View

FONT_SIZE = 15  # read from the back of a room
STATIC = Path(__file__).parent / "static"
NO_FIGURE = "A view of the page {}: open it in kvlab."


def deck(story: Story, theme: Theme = "light") -> bytes:
    """The talk (UTF-8).

    Raises:
        UserError: the story has no views, or a figure in it cannot be read.
    """
    if not story.views:
        raise UserError("This story has no views yet: add figures to it from their menus.")
    title, style = html.escape(story.name), (STATIC / "deck.css").read_text(encoding="utf-8")
    colours = f":root {{ --ground: {SURFACES[theme]}; --ink: {INK[theme]}; --font: {FONT}; }}"
    figures = [_figure(view, theme) if view.slide else None for view in story.views]
    slides = "".join(_slide(view, at, len(story.views)) for at, view in enumerate(story.views))
    # "</" would end the script that holds a figure's own texts.
    given = json.dumps(figures).replace("</", "<\\/")
    parts = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{colours}{style}</style>',
        f"<main>{slides}</main>",
        f"<script>{get_plotlyjs()}</script>" if any(figures) else "",
        f"<script>const figures = {given};{(STATIC / 'deck.js').read_text(encoding='utf-8')}</script></html>",
    )
    return "\n".join(parts).encode()


def figure_of(view: View) -> go.Figure:
    """The figure of a slide; raises UserError where it cannot be read."""
    if view.slide is None:
        raise UserError(f"{view.title} is a view of a page and no slide: add its figures from their menus.")
    try:
        return go.Figure(**json.loads(view.slide.figure))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"The figure of the slide {view.title[:60]!r} is damaged: add it again.") from error


def _figure(view: View, theme: Theme) -> dict:
    figure = figure_of(view).update_layout(title=None, height=None, width=None, autosize=True)
    figure.update_layout(font_size=FONT_SIZE, legend_font_size=FONT_SIZE)
    figure.update_xaxes(tickfont_size=FONT_SIZE, title_font_size=FONT_SIZE)
    figure.update_yaxes(tickfont_size=FONT_SIZE, title_font_size=FONT_SIZE)
    figure.update_layout(paper_bgcolor=SURFACES[theme], margin_t=40 if figure.layout.annotations else 24)
    return json.loads(figure.to_json())


def _slide(view: View, at: int, count: int) -> str:
    words = view.caption or (view.slide.reading if view.slide else NO_FIGURE.format(view.title))
    picture = f'<div class="figure" id="figure-{at}"></div>' if view.slide else '<div class="figure none"></div>'
    source = html.escape(view.slide.source) if view.slide else ""
    return (
        f'<section id="slide-{at}"><h1>{html.escape(view.title)}</h1>{picture}<p>{html.escape(words)}</p>'
        f'<footer><span class="source">{source}</span><span>{at + 1} / {count}</span></footer></section>'
    )
