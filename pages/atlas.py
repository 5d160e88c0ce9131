"""Atlas: every figure and table of the five papers at a glance, drawn from what is in view."""

from __future__ import annotations

import streamlit as st

from app.parts import page
from app.parts.cards import Card, card, fill
from app.parts.order import order_all
from app.parts.reference import warn_of_reference
from app.state import current_sources
from kvlab.atlas.registry import PAPERS, of_paper

PRINTED = 46


def main() -> None:
    page.heading(
        "Atlas",
        "Every figure and table of the five papers, drawn from the comparison in view and from the evaluations and "
        "benchmarks in its folder. A badge says whether the paper's claim holds on this data; a dashed card names the "
        "command that fills it, and has a button that queues it.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    stamp, counts, missing = sources.stamp(), st.empty(), st.container(horizontal=True, vertical_alignment="center")
    # All cards stand at once; each is filled as it is drawn, so that nobody waits for the last one.
    places = [place for paper, title in PAPERS.items() for place in row_of_cards(paper, title)]
    states = [fill(place, sources, stamp) for place in places]
    drawn = sum(bool(state.origin) for state in states)
    with missing:
        order_all([state.command for state in states if state.command])
    counts.caption(
        f"{drawn} of {len(places)} can be drawn from what is in view. The papers print {PRINTED} figures and tables; "
        "figures of several panels have a card a panel."
    )


def row_of_cards(paper: str, title: str) -> list[Card]:
    """The cards of one paper under its name."""
    st.subheader(title, anchor=paper)
    with st.container(horizontal=True, gap="small"):
        return [card(exhibit) for exhibit in of_paper(paper)]


main()
