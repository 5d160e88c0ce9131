"""Papers: what the five papers and newer methods claim, and what holds here; the paper is a filter."""

from __future__ import annotations

import streamlit as st

from app.base.text import code, plain
from app.navigation.selection import current_sources
from app.papers.exhibit import show_exhibit
from app.papers.overview import shipped_claims, show_overview
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from app.session.url_state import clear_page_param, in_url, set_page_param, url_value
from kvlab.papers.exhibit import Exhibit
from kvlab.papers.registry import EXHIBITS, JOINED, PAPERS
from kvlab.papers.scorecard import matching

PAPER = "pick_paper"
PICKED = "pick_exhibit"
ALL = ""


def main() -> None:
    """The overview, or the exhibit that the URL names by `paper` and `exhibit`."""
    page.heading("Papers", "What the papers claim, and what holds here, on your runs or on the results that ship.")
    paper = pick_paper()
    exhibits = [exhibit for exhibit in EXHIBITS if paper in (ALL, exhibit.paper)]
    chosen = pick_exhibit({exhibit.slug: exhibit for exhibit in exhibits}, paper) if paper else None
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    if chosen is not None:
        show_exhibit(chosen, sources, PAPERS[chosen.paper])
        return
    words = st.text_input(
        "Search", placeholder="Words of the title, the claim or the paper, such as votes or GVote", **in_url("search")
    ).strip()
    found = matching(exhibits, words, shipped_claims)
    if words:
        st.caption(f"{len(found)} of {len(exhibits)} figures and tables have {plain(words)}.")
    if found:
        show_overview(sources, found, with_cards=bool(paper or words))


def pick_paper() -> str:
    """The paper in the URL, as pills; all without one."""
    requested = url_value("paper") or ALL
    if requested and requested not in PAPERS:
        st.warning(f"There is no paper {code(requested)}: choose one below.")
        requested = ALL
    # Not `in_url`, which puts labels into the URL.
    st.session_state[PAPER] = requested
    names = {ALL: "All"} | {str(name): title for name, title in PAPERS.items()}
    st.pills("Paper", list(names), key=PAPER, format_func=names.__getitem__, required=True, on_change=_remember_paper)
    return st.session_state[PAPER]


def pick_exhibit(exhibits: dict[str, Exhibit], paper: str) -> Exhibit | None:
    """The exhibit in the URL, with a picker to change it; None for the overview."""
    requested = url_value("exhibit")
    slug = JOINED.get(f"{paper}/{requested}", requested)
    if slug and slug not in exhibits:
        st.warning(f"Exhibit {code(slug)} is not in this paper: choose one below.")
    st.session_state[PICKED] = slug if slug in exhibits else None
    st.selectbox(
        "Figure or table",
        list(exhibits),
        key=PICKED,
        format_func=lambda slug: exhibits[slug].label,
        placeholder="All of them",
        on_change=_remember_exhibit,
    )
    return exhibits.get(st.session_state[PICKED])


def _remember_paper() -> None:
    clear_page_param("exhibit")
    if st.session_state[PAPER]:
        set_page_param("paper", st.session_state[PAPER])
    else:
        clear_page_param("paper")


def _remember_exhibit() -> None:
    if st.session_state[PICKED]:
        set_page_param("exhibit", st.session_state[PICKED])
    else:
        clear_page_param("exhibit")


main()
