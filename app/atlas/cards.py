"""The atlas at a glance: a card an exhibit, with a small picture of what it draws now and what it says of the claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.atlas.exhibit import BADGES, failed
from app.atlas.figure_cache import Kept
from app.atlas.measure_button import measure_button
from app.base.links import in_view, link
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, titled
from kvlab.atlas.exhibit import Choice, Exhibit, Needs
from kvlab.atlas.registry import PAPERS
from kvlab.atlas.scorecard import VERDICTS, Lines, claims_of, lines
from kvlab.atlas.shipped_exhibits import card_of, merged
from kvlab.common.errors import UserError
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.thumbnail import blank, thumbnail
from kvlab.report.views import Table
from kvlab.requests.measurement import Measurement, command_line
from kvlab.results.provenance import PUBLISHED
from kvlab.results.shipped import Shipped, ShippedCard, shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim

KEPT_BYTES = 16_000_000  # of pictures and words: some 30 atlases
CARD_WIDTH = 264


@dataclass(frozen=True)
class State:
    """What an exhibit can show now: a picture, its claims and their source; else the measurement that is missing.

    What ships with kvlab also has the measurement that makes the reader's own data.
    """

    picture: str
    origin: str = ""
    source: str = ""
    claims: tuple[Claim, ...] = ()
    missing: str = ""
    measurement: Measurement | None = None
    is_shipped: bool = False


@dataclass(frozen=True)
class Card:
    """The places of a card that is on the page and whose state is not known yet."""

    exhibit: Exhibit
    picture: DeltaGenerator
    line: DeltaGenerator


def card(exhibit: Exhibit) -> Card:
    """A card with its link and title; the picture and the state are filled in by `fill`."""
    with st.container(border=True, width=CARD_WIDTH, gap="small"):
        picture = st.empty()
        picture.image(blank("drawing …", page_theme()), width="stretch")
        link(exhibit.paper.replace("-", "_"), f"**{exhibit.number}**", exhibit=exhibit.slug, **in_view())
        st.markdown(plain(shorten(exhibit.title, 70)))
        return Card(exhibit, picture, st.empty())


def fill(place: Card, sources: Sources) -> State:
    """Draws the exhibit into its card; returns what it shows: without an origin there was nothing to draw it from.

    It is drawn with the first recorded layer and head, and kept; where more was recorded since, an older one will do
    while it is drawn anew.
    """
    theme = page_theme()
    try:
        found = _kept().get(
            (place.exhibit.key, theme), place.exhibit.seen(sources), lambda: _state(place.exhibit, sources, theme)
        )
    except Exception as error:  # one exhibit's fault must not take the other cards down; not kept, so tried again
        found = State(blank("failed", theme), missing=failed(place.exhibit, error))
    place.picture.image(found.picture, width="stretch")
    with place.line.container(gap="small"):
        if found.claims:
            judged = found.claims[0]
            colour, icon = BADGES[judged.verdict]
            st.badge(judged.verdict, color=colour, icon=icon, help=plain(judged.finding))  # type: ignore[arg-type]
            if judged.basis.words:
                st.caption(plain(f"on {judged.basis.words}"))
        setting = found.claims[0].setting if found.claims else ""
        if setting and not setting.startswith(PUBLISHED):
            st.caption(f"judged {plain(shorten(setting, 60))}", help=plain(setting))
        if found.origin:
            words = found.source if found.is_shipped else f"drawn from {shorten(found.source, 60)}"
            st.caption(plain(words), help=plain(found.origin))
            if found.is_shipped and found.measurement:
                measure_button(found.measurement, place.exhibit.key)
        elif found.measurement:
            command = command_line(found.measurement)
            st.caption(f"needs `{shorten(command, 90)}`", help=f"{plain(found.missing)}\n\n`{command}`")
            measure_button(found.measurement, place.exhibit.key)
        else:
            st.caption(plain(found.missing))
    return found


@st.cache_resource(show_spinner=False)
def _kept() -> Kept[State]:
    return Kept(KEPT_BYTES, size=lambda state: len(repr(state)), stands=lambda state: bool(state.origin))


def _state(exhibit: Exhibit, sources: Sources, theme: Theme) -> State:
    sliding = sources.run.record.sliding_layers if sources.run else ()
    layer = next((index for index in range(len(sliding) + 1) if index not in sliding), 0)
    try:
        own = exhibit.draw(sources, Choice(layer=layer), theme)
    except UserError as error:
        own = Needs(str(error))
    ships = shipped()
    if isinstance(own, Needs):
        return _without_own(own, ships, card_of(exhibit, ships, sources, theme), theme)
    drawn = merged(exhibit, own, ships, sources, theme)
    first, picture = own[0], thumbnail(own[0].figure, theme)
    return State(picture, str(first.origin), first.origin.short, claims_of(drawn))


def _without_own(missing: Needs, ships: Shipped | None, card: ShippedCard | None, theme: Theme) -> State:
    if ships is not None and card is not None:
        return State(
            card.picture, card.origin, ships.words, card.claims, measurement=missing.measurement, is_shipped=True
        )
    empty = "not recorded yet" if missing.measurement else "not recorded"
    return State(blank(empty, theme), missing=missing.sentence, measurement=missing.measurement)


WIDTHS = (1.2, 2.4, 2, 2.4)


def scorecard(place: DeltaGenerator, judged: Iterable[tuple[Exhibit, Iterable[Claim]]], query: dict[str, str]) -> None:
    """A row a paper, a column a verdict: how many claims, and a link to the exhibit behind each."""
    found = lines(judged)
    with place.container(border=True, gap="small"):
        reading = "How many claims of each paper hold here, and the figures and tables that decide them."
        titled(Offer("What is said of the papers' claims on this model", lambda: _table(found), reading), "scorecard")
        heads = st.columns(WIDTHS, gap="small")
        for head, verdict in zip(heads[1:], VERDICTS, strict=True):
            colour, icon = BADGES[verdict]
            head.badge(verdict, color=colour, icon=icon)  # type: ignore[arg-type]
        for paper, title in PAPERS.items():
            row = st.columns(WIDTHS, gap="small", vertical_alignment="center")
            row[0].markdown(plain(title))
            for cell, verdict in zip(row[1:], VERDICTS, strict=True):
                claims = found[paper][verdict]
                with cell, st.container(horizontal=True, gap="small", vertical_alignment="center"):
                    st.markdown(f"**{len(claims)}**", width="content")
                    for exhibit, claim in claims:
                        help_text = f"{claim.paper} {claim.basis.words}".strip()
                        link(paper.replace("-", "_"), exhibit.number, help=help_text, exhibit=exhibit.slug, **query)


def _table(found: Lines) -> Table:
    rows = (
        (title, *(_cell([exhibit.number for exhibit, _ in found[paper][verdict]]) for verdict in VERDICTS))
        for paper, title in PAPERS.items()
    )
    return Table(columns=("paper", *VERDICTS), rows=tuple(rows))


def _cell(numbers: list[str]) -> str:
    return f"{len(numbers)}: {', '.join(numbers)}" if numbers else "0"
