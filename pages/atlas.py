"""Atlas: the overview of all figures and tables of the five papers, drawn from the user's runs."""

from __future__ import annotations

import streamlit as st

from app.atlas.cards import Card, card, fill, scorecard
from app.atlas.measure_button import measure_all
from app.base.links import run_in_url
from app.navigation.selection import current_sources
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from kvlab.atlas.registry import PAPERS, of_paper

PRINTED = 46


def main() -> None:
    page.heading(
        "Atlas",
        "Every figure and table of the five papers, drawn from the comparison chosen above and from the evaluations "
        "and benchmarks in its folder, or else from the results shipped with kvlab. A badge says whether the paper's "
        "claim holds, over all heads, merges and prompts; a button queues the jobs that a card needs.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    counts, card_of_scores = st.empty(), st.empty()
    missing = st.container(horizontal=True, vertical_alignment="center")
    # All cards appear at once; each is filled as it is drawn.
    places = [place for paper, title in PAPERS.items() for place in row_of_cards(paper, title)]
    states = [fill(place, sources) for place in places]
    exhibits = [place.exhibit for place in places]
    scorecard(card_of_scores, zip(exhibits, (state.claims for state in states), strict=True), run_in_url())
    drawn, shipped = (
        sum(flags) for flags in zip(*((bool(state.origin), state.is_shipped) for state in states), strict=True)
    )
    with missing:
        measure_all([state.measurement for state in states if state.measurement])
    counts.caption(
        f"{drawn} of {len(places)} can be drawn, {shipped} of them from the results shipped with kvlab. The papers "
        f"have {PRINTED} figures and tables; figures of several panels have one card per panel."
    )


def row_of_cards(paper: str, title: str) -> list[Card]:
    """The cards of one paper under its name."""
    st.subheader(title, anchor=paper)
    with st.container(horizontal=True, gap="small"):
        return [card(exhibit) for exhibit in of_paper(paper)]


main()
