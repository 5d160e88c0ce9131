"""The atlas at a glance: a card an exhibit, with a small picture of what it draws now and what it says of the claim."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.parts.exhibit import BADGES
from app.parts.links import link
from app.parts.text import plain, shorten
from app.state import theme as page_theme
from kvlab.atlas.exhibit import Choice, Exhibit, Needs
from kvlab.atlas.registry import find
from kvlab.atlas.sources import Sources
from kvlab.errors import UserError
from kvlab.figures.palette import Theme
from kvlab.figures.thumbnail import blank, thumbnail

KEPT_STATES = 500
CARD_WIDTH = 282


@dataclass(frozen=True)
class State:
    """What an exhibit can show now: a picture, and either where it was drawn from or what makes it."""

    picture: str
    origin: str = ""
    verdict: str = ""
    finding: str = ""
    missing: str = ""
    command: str = ""


def state(exhibit: Exhibit, sources: Sources, stamp: tuple[str, ...]) -> State:
    """The exhibit's state with the first recorded layer and head; kept while nothing on disk changes."""
    return _state(sources, stamp, exhibit.key, page_theme())


@st.cache_data(max_entries=KEPT_STATES, show_spinner=False)
def _state(_sources: Sources, stamp: tuple[str, ...], key: str, theme: Theme) -> State:
    exhibit = find(*key.split("/"))
    sliding = _sources.run.record.sliding_layers if _sources.run else ()
    layer = next((index for index in range(len(sliding) + 1) if index not in sliding), 0)
    try:
        drawn = exhibit.draw(_sources, Choice(layer=layer), theme)
    except UserError as error:
        return State(blank(theme), missing=str(error))
    if isinstance(drawn, Needs):
        return State(blank(theme), missing=drawn.sentence, command=drawn.command)
    first, judged = drawn[0], next((one.claim for one in drawn if one.claim), None)
    picture = thumbnail(first.figure, theme)
    return State(picture, first.origin, judged.verdict if judged else "", judged.finding if judged else "")


def card(exhibit: Exhibit, found: State) -> None:
    """One card: picture, link, and a line on where it came from or the command it needs."""
    with st.container(border=True, width=CARD_WIDTH, gap="small"):
        st.image(found.picture, width="stretch")
        name = exhibit.paper.replace("-", "_")
        link(name, f"{exhibit.number} · {plain(shorten(exhibit.title, 60))}", exhibit=exhibit.slug, **_in_view())
        if found.verdict:
            colour, icon = BADGES[found.verdict]
            st.badge(found.verdict, color=colour, icon=icon, help=plain(found.finding))  # type: ignore[arg-type]
        if found.origin:
            st.caption(f"drawn from {plain(shorten(found.origin.split(' · ')[0], 60))}")
        elif found.command:
            st.caption(f"needs `{shorten(found.command, 90)}`", help=f"{plain(found.missing)}\n\n`{found.command}`")
        else:
            st.caption(plain(found.missing))


def _in_view() -> dict[str, str]:
    """The run and comparison of the address, which the menu's links do not carry."""
    return {name: value for name in ("run", "comparison") if (value := st.query_params.get(name))}
