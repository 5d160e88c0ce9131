"""The overview of the atlas: one card per exhibit with a thumbnail and the verdict on the claim, and a scorecard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.atlas.exhibit import BADGES, failed
from app.atlas.figure_cache import FigureCache
from app.atlas.measure_button import measure_button
from app.base.links import link, run_in_url
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, titled
from kvlab.atlas.exhibit import Choice, Exhibit, Needs
from kvlab.atlas.registry import PAPERS
from kvlab.atlas.scorecard import VERDICTS, Lines, claims_of, lines
from kvlab.atlas.shipped_exhibits import card_of, with_shipped
from kvlab.common.errors import UserError
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.thumbnail import blank, thumbnail
from kvlab.report.views import Table
from kvlab.requests.measurement import Measurement, command_line
from kvlab.results.provenance import PUBLISHED
from kvlab.results.shipped_folder import Shipped, ShippedCard, shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim

CACHE_BYTES = 16_000_000  # of thumbnails and texts: some 30 atlases
CARD_WIDTH = 264


@dataclass(frozen=True)
class State:
    """The content of a card: thumbnail, claims and source; without data the reason, and the command that records it.

    A card of shipped results has the command for the user's own data too.
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
    """The placeholders of a card whose content is not drawn yet."""

    exhibit: Exhibit
    picture: DeltaGenerator
    line: DeltaGenerator


def card(exhibit: Exhibit) -> Card:
    """A card with its link and title; `fill` adds the thumbnail and the rest."""
    with st.container(border=True, width=CARD_WIDTH, gap="small"):
        picture = st.empty()
        picture.image(blank("drawing …", page_theme()), width="stretch")
        link(exhibit.paper.replace("-", "_"), f"**{exhibit.number}**", exhibit=exhibit.slug, **run_in_url())
        st.markdown(plain(shorten(exhibit.title, 70)))
        return Card(exhibit, picture, st.empty())


def fill(place: Card, sources: Sources) -> State:
    """Draw the exhibit, for the first recorded layer and head, into its card; from the cache (`FigureCache`)."""
    theme = page_theme()
    try:
        state = _cache().get(
            (place.exhibit.key, theme), place.exhibit.seen(sources), lambda: _state(place.exhibit, sources, theme)
        )
    except Exception as error:  # other cards must not fail with this one; errors are not cached
        state = State(blank("failed", theme), missing=failed(place.exhibit, error))
    place.picture.image(state.picture, width="stretch")
    with place.line.container(gap="small"):
        if state.claims:
            judged = state.claims[0]
            colour, icon = BADGES[judged.verdict]
            st.badge(judged.verdict, color=colour, icon=icon, help=plain(judged.finding))  # type: ignore[arg-type]
            if judged.basis.words:
                st.caption(plain(f"on {judged.basis.words}"))
        setting = state.claims[0].setting if state.claims else ""
        if setting and not setting.startswith(PUBLISHED):
            st.caption(f"judged {plain(shorten(setting, 60))}", help=plain(setting))
        if state.origin:
            words = state.source if state.is_shipped else f"drawn from {shorten(state.source, 60)}"
            st.caption(plain(words), help=plain(state.origin))
            if state.is_shipped and state.measurement:
                measure_button(state.measurement, place.exhibit.key)
        elif state.measurement:
            command = command_line(state.measurement)
            st.caption(f"needs `{shorten(command, 90)}`", help=f"{plain(state.missing)}\n\n`{command}`")
            measure_button(state.measurement, place.exhibit.key)
        else:
            st.caption(plain(state.missing))
    return state


@st.cache_resource(show_spinner=False)
def _cache() -> FigureCache[State]:
    return FigureCache(CACHE_BYTES, size=lambda state: len(repr(state)), is_useful=lambda state: bool(state.origin))


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
    drawn = with_shipped(exhibit, own, ships, sources, theme)
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
    """One row per paper, one column per verdict: the number of claims, and links to their exhibits."""
    by_verdict = lines(judged)
    with place.container(border=True, gap="small"):
        reading = "How many claims of each paper hold here, and the figures and tables they are judged on."
        titled(Offer("Verdicts on the papers' claims on this model", lambda: _table(by_verdict), reading), "scorecard")
        heads = st.columns(WIDTHS, gap="small")
        for head, verdict in zip(heads[1:], VERDICTS, strict=True):
            colour, icon = BADGES[verdict]
            head.badge(verdict, color=colour, icon=icon)  # type: ignore[arg-type]
        for paper, title in PAPERS.items():
            row = st.columns(WIDTHS, gap="small", vertical_alignment="center")
            row[0].markdown(plain(title))
            for cell, verdict in zip(row[1:], VERDICTS, strict=True):
                claims = by_verdict[paper][verdict]
                with cell, st.container(horizontal=True, gap="small", vertical_alignment="center"):
                    st.markdown(f"**{len(claims)}**", width="content")
                    for exhibit, claim in claims:
                        help_text = f"{claim.paper} {claim.basis.words}".strip()
                        link(paper.replace("-", "_"), exhibit.number, help=help_text, exhibit=exhibit.slug, **query)


def _table(by_verdict: Lines) -> Table:
    rows = (
        (title, *(_cell([exhibit.number for exhibit, _ in by_verdict[paper][verdict]]) for verdict in VERDICTS))
        for paper, title in PAPERS.items()
    )
    return Table(columns=("paper", *VERDICTS), rows=tuple(rows))


def _cell(numbers: list[str]) -> str:
    return f"{len(numbers)}: {', '.join(numbers)}" if numbers else "0"
