"""Draw an exhibit for the model in view: from its own data, or from mini's with a badge that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape, unescape

import plotly.graph_objects as go

from kvlab.atlas.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.atlas.shipped_exhibits import with_shipped
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.requests.measurement import MINI
from kvlab.results.shipped_folder import Shipped
from kvlab.results.sources import Sources
from kvlab.views.base.palette import HUES, SURFACES, Theme, pick
from kvlab.views.base.thumbnail import HEIGHT, WIDTH

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
        name=NAME,
        text=f"<b>{escape(words)}</b>",
        showarrow=False,
        xref="paper",
        yref="paper",
        x=1,
        y=1,
        xanchor="right",
        yanchor="top" if titled else "bottom",
        yshift=-2 if titled else 3,
        font={"size": 11, "color": ink},
        bgcolor=SURFACES[theme],
        bordercolor=ink,
        borderwidth=1,
        borderpad=2,
    )


def badge_of(figure: go.Figure) -> str:
    """The words of the figure's badge; "" without one."""
    texts = (one.text for one in figure.layout.annotations if one.name == NAME)
    return unescape(next(texts, "").removeprefix("<b>").removesuffix("</b>"))


def on_thumbnail(svg: str, words: str, theme: Theme) -> str:
    """The thumbnail with faded marks, under the same words."""
    ink = pick(HUES["red"], theme)
    wide = min(WIDTH - 12, 12 + 6.2 * len(words))
    begin = svg.index(">") + 1
    box = f'x="{WIDTH - wide - 4:g}" y="{HEIGHT - 24}" width="{wide:g}" height="18" rx="3"'
    place = f'x="{WIDTH - 4 - wide / 2:g}" y="{HEIGHT - 11}" text-anchor="middle"'
    badge = (
        f'<rect {box} fill="{SURFACES[theme]}" stroke="{ink}"/><text {place} fill="{ink}" font-size="11" '
        f'font-family="Inter, system-ui, sans-serif">{escape(words)}</text>'
    )
    marks = svg[begin:].removesuffix("</svg>")
    return f'{svg[:begin]}<g opacity="0.45">{marks}</g>{badge}</svg>'


def draw_shown(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Mapping[str, Shipped]
) -> tuple[Drawn, ...] | Needs:
    """The exhibit as `draw_recorded`, or else from the shipped results of the model in view, or of mini.

    `ships` are the shipped results by model. Raises UserError if what it needs was not recorded.
    """
    found = draw_recorded(exhibit, sources, choice, theme, ships)
    if isinstance(found, tuple):
        return found
    here = sources.measured_model
    for model in dict.fromkeys((here, MINI)):
        theirs = with_shipped(exhibit, found, ships.get(model), sources.of_model(model), theme)
        if isinstance(theirs, tuple):
            wanted = None if model == here else found
            return tuple(_badged(replace(one, wanted=wanted), sources, theme) for one in theirs)
    return found


def draw_recorded(
    exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme, ships: Mapping[str, Shipped]
) -> tuple[Drawn, ...] | Needs:
    """The exhibit from the folder of runs: on the model in view, or else on mini, with what the other model lacks.

    Mini's are left out if the model in view has shipped results of the exhibit. All figures of another model, or of
    none, have a badge. Open claims are completed by the shipped results of their model.
    Raises UserError if what it needs was not recorded.
    """
    here = sources.measured_model
    own = exhibit.draw(sources, choice, theme)
    if isinstance(own, tuple):
        completed = with_shipped(exhibit, own, ships.get(here), sources, theme)
        assert isinstance(completed, tuple)
        return tuple(_badged(one, sources, theme) for one in completed)
    if here == MINI or (here in ships and (exhibit.key, theme) in ships[here].cards):
        return own
    theirs = sources.of_model(MINI)
    try:  # mini may not have the layers and heads of the model in view
        drawn = exhibit.draw(theirs, Choice(numbers=choice.numbers), theme)
    except UserError:
        return own
    if isinstance(drawn, Needs):
        return own
    decided = with_shipped(exhibit, drawn, ships.get(MINI), theirs, theme)
    assert isinstance(decided, tuple)
    return tuple(_badged(replace(one, wanted=own), sources, theme) for one in decided)


def _badged(drawn: Drawn, sources: Sources, theme: Theme) -> Drawn:
    if drawn.model in ("", sources.measured_model):
        return drawn
    return replace(drawn, figure=with_badge(drawn.figure, measured_on(model_title(drawn.model)), theme))
