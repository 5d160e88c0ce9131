"""The overview of the atlas: one card per exhibit with a thumbnail and the verdict on the claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.atlas.exhibit import describe_failure
from app.atlas.figure_cache import FigureCache
from app.atlas.measure_button import measure_button
from app.atlas.verdict_card import BADGES
from app.base.links import link, run_in_url
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from kvlab.atlas import cards
from kvlab.atlas.cards import Card
from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.scorecard import SHAPES, Judged, verdicts_on_each
from kvlab.common.formatting import model_title
from kvlab.requests.measurement import command_line
from kvlab.results.shipped_folder import shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import Claim
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import PUBLISHED
from kvlab.views.base.thumbnail import blank

CACHE_BYTES = 16_000_000  # of thumbnails and texts: some 30 atlases
CARD_WIDTH = 238  # pixels: four in a row at 1440, three at 1024
CARD_HEIGHT = 400  # pixels; reserved, so that the page does not grow while cards are drawn
STYLE = (
    f"<style>[class*=st-key-atlas-card]{{min-height:{CARD_HEIGHT}px}}"
    "[class*=st-key-atlas-card] [data-testid=stPageLink] p{white-space:normal}</style>"
)


@dataclass(frozen=True)
class Place:
    """The placeholders of a card whose content is not drawn yet."""

    exhibit: Exhibit
    picture: DeltaGenerator
    line: DeltaGenerator
    each: DeltaGenerator
    button: DeltaGenerator


def place_card(exhibit: Exhibit) -> Place:
    """A card with its link and title; `show_card` adds the thumbnail and the rest."""
    key = f"atlas-card-{exhibit.key.replace('/', '-')}"
    with st.container(border=True, width=CARD_WIDTH, gap="small", key=key):
        picture = st.empty()
        picture.image(blank("drawing …", page_theme()), width="stretch", alt="")
        label = f"**{exhibit.label}**"
        title = exhibit.title if exhibit.short else None
        link(exhibit.paper.replace("-", "_"), label, help=title, exhibit=exhibit.slug, **run_in_url())
        return Place(exhibit, picture, st.empty(), st.empty(), st.empty())


def shipped_claims(exhibit: Exhibit) -> tuple[Claim, ...]:
    """The claims of an exhibit that ship, which are known before it is drawn."""
    ships = shipped()
    return ships.claims(exhibit.key, page_theme()) if ships else ()


def known_card(exhibit: Exhibit, sources: Sources) -> Card | None:
    """The card if it need not be drawn: it is in memory or on disk."""
    theme = page_theme()
    found = _cache().known((exhibit.key, theme), exhibit.seen(sources))
    return found or cards.find_card(exhibit, sources, theme)


def known_verdicts(exhibit: Exhibit, sources: Sources) -> Card | None:
    """`known_card`, or the one of the other theme, whose verdicts are the same."""
    other: Theme = "dark" if page_theme() == "light" else "light"
    return known_card(exhibit, sources) or cards.find_card(exhibit, sources, other)


def drawn_card(exhibit: Exhibit, sources: Sources) -> Card:
    """The card, from the cache (`FigureCache`) or drawn now."""
    theme = page_theme()
    try:
        return _cache().get(
            (exhibit.key, theme), exhibit.seen(sources), lambda: cards.draw_card(exhibit, sources, theme)
        )
    except Exception as error:  # other cards must not fail with this one; errors are not cached
        return Card(blank("failed", theme), missing=describe_failure(exhibit, error))


def show_card(place: Place, card: Card, model: str) -> None:
    """Fill a card of the overview; `model` is the one in view."""
    place.picture.image(card.picture, width="stretch", alt=f"Thumbnail of {place.exhibit.label}")
    with place.line.container(gap="small"):
        if card.judged:
            judged = card.judged[0]
            colour, icon = BADGES[judged.claim.verdict]
            where = "" if judged.model in (model, SHAPES) else f" on {model_title(judged.model)}"
            words = f"{judged.claim.verdict}{where}"
            st.badge(words, color=colour, icon=icon, help=plain(judged.claim.finding))
            if judged.claim.basis.words:
                st.caption(plain(f"on {judged.claim.basis.words}"))
        setting = card.judged[0].claim.setting if card.judged else ""
        if setting and not setting.startswith(PUBLISHED):
            st.caption(f"judged {plain(shorten(setting, 60))}", help=plain(setting))
        if card.origin:
            words = card.source if card.is_shipped else f"drawn from {shorten(card.source, 60)}"
            st.caption(plain(words), help=plain(card.origin))
        elif card.measurement:
            command = command_line(card.measurement)
            st.caption(f"needs `{shorten(command, 90)}`", help=f"{plain(card.missing)}\n\n`{command}`")
        else:
            st.caption(plain(card.missing))


def show_each(place: Place, card: Card, judged: Iterable[Judged]) -> None:
    """Add a line with the verdicts on the card's claim on every model."""
    if card.judged and (words := verdicts_on_each(judged, card.judged[0].claim.paper)):
        place.each.caption(plain(words))


def show_button(place: Place, card: Card) -> None:
    """Add the button that queues what the card needs; its estimate takes longer than most cards."""
    if card.measurement:
        with place.button.container():
            measure_button(card.measurement, place.exhibit.key)


@st.cache_resource(show_spinner=False)
def _cache() -> FigureCache[Card]:
    return FigureCache(CACHE_BYTES, size=lambda card: len(repr(card)), is_useful=lambda card: bool(card.origin))
