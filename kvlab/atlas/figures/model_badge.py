"""A badge on a figure that names the model its data was measured on."""

from __future__ import annotations

from html import escape, unescape

import plotly.graph_objects as go

from kvlab.figures.base.palette import HUES, SURFACES, Theme, pick
from kvlab.figures.base.thumbnail import HEIGHT, WIDTH

NAME = "measured-on"  # of the annotation
TITLES_FROM = 0.95  # of the height: panel titles lie above


def measured_on(model: str) -> str:
    """The words of the badge."""
    return f"measured on {model}"


def with_badge(figure: go.Figure, words: str, theme: Theme) -> go.Figure:
    """A copy of the figure with a badge in its top right corner: above the plot, or inside where panels have titles.

    The badge is part of the figure, so that pictures and slides have it too.
    """
    titled = any(one.yref == "paper" and (one.y or 0) >= TITLES_FROM for one in figure.layout.annotations)
    ink = pick(HUES["red"], theme)
    return go.Figure(figure).add_annotation(
        name=NAME, text=f"<b>{escape(words)}</b>", showarrow=False, xref="paper", yref="paper", x=1, y=1,
        xanchor="right", yanchor="top" if titled else "bottom", yshift=-2 if titled else 3,
        font={"size": 11, "color": ink}, bgcolor=SURFACES[theme], bordercolor=ink, borderwidth=1, borderpad=2,
    )  # fmt: skip


def badge_of(figure: go.Figure) -> str:
    """The words of the figure's badge; "" without one."""
    texts = (one.text for one in figure.layout.annotations if one.name == NAME)
    return unescape(next(texts, "").removeprefix("<b>").removesuffix("</b>"))


def on_thumbnail(svg: str, words: str, theme: Theme) -> str:
    """The thumbnail with faded marks, under the same words."""
    ink, wide = pick(HUES["red"], theme), min(WIDTH - 12, 12 + 6.2 * len(words))
    begin = svg.index(">") + 1
    box = f'x="{WIDTH - wide - 4:g}" y="{HEIGHT - 24}" width="{wide:g}" height="18" rx="3"'
    place = f'x="{WIDTH - 4 - wide / 2:g}" y="{HEIGHT - 11}" text-anchor="middle"'
    badge = (
        f'<rect {box} fill="{SURFACES[theme]}" stroke="{ink}"/><text {place} fill="{ink}" font-size="11" '
        f'font-family="Inter, system-ui, sans-serif">{escape(words)}</text>'
    )
    marks = svg[begin:].removesuffix("</svg>")
    return f'{svg[:begin]}<g opacity="0.45">{marks}</g>{badge}</svg>'
