"""Atlas: every figure and table of the five papers at a glance, drawn from what is in view."""

from __future__ import annotations

import streamlit as st

from app.atlas.cards import Card, card, fill, scorecard
from app.atlas.measure_button import measure_all
from app.base.links import in_view
from app.navigation.selection import current_sources
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from kvlab.atlas.registry import PAPERS, of_paper

PRINTED = 46


def main() -> None:
    page.heading(
        "Atlas",
        "Every figure and table of the five papers, drawn from the comparison in view and from the evaluations and "
        "benchmarks in its folder; what is not there yet is shown as it comes with kvlab. A badge says whether the "
        "paper's claim holds, judged over all heads, merges and prompts; a button queues what a card lacks.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    counts, card_of_scores = st.empty(), st.empty()
    missing = st.container(horizontal=True, vertical_alignment="center")
    # All cards stand at once; each is filled as it is drawn, so that nobody waits for the last one.
    places = [place for paper, title in PAPERS.items() for place in row_of_cards(paper, title)]
    states = [fill(place, sources) for place in places]
    exhibits = [place.exhibit for place in places]
    scorecard(card_of_scores, zip(exhibits, (state.claims for state in states), strict=True), in_view())
    drawn, shipped = (sum(found) for found in zip(*((bool(one.origin), one.is_shipped) for one in states), strict=True))
    with missing:
        measure_all([state.measurement for state in states if state.measurement])
    counts.caption(
        f"{drawn} of {len(places)} can be drawn, {shipped} of them from what comes with kvlab. The papers print "
        f"{PRINTED} figures and tables; "
        "figures of several panels have a card a panel."
    )


def row_of_cards(paper: str, title: str) -> list[Card]:
    """The cards of one paper under its name."""
    st.subheader(title, anchor=paper)
    with st.container(horizontal=True, gap="small"):
        return [card(exhibit) for exhibit in of_paper(paper)]


main()
