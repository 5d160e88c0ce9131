"""The page of one paper: a picker of its exhibits, and the chosen one."""

from __future__ import annotations

import streamlit as st

from app.atlas.exhibit import show_exhibit
from app.base.text import code
from app.navigation.selection import current_sources
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from app.session.url_state import set_page_param, url_value
from kvlab.papers.exhibit import Exhibit
from kvlab.papers.registry import PAPERS, of_paper

PICKED = "pick_exhibit"
ABOUT = {
    "zsmerge": "Each head's budget is split into recent, context and residual slots; evicted tokens are averaged into "
    "residual slots that count how many tokens they represent.",
    "kvmerger": "Neighbouring tokens have similar keys; runs of them are merged toward a pivot by a Gaussian kernel. "
    "The paper evicts nothing; here slots over the budget at its threshold are evicted.",
    "pyramid-pool": "The oldest tokens are pooled in windows, again and again, with budgets that shrink with depth.",
    "keepkv": "Merging makes attention sag; electoral votes and a merge without perturbation preserve a slot's "
    "influence.",
    "gvote": "No budget is needed: queries sampled from a Gaussian vote for tokens, and the union of their votes is "
    "kept.",
    "beyond": "Claims of newer methods that a small model and its tasks can check.",
}


def paper_page(paper: str) -> None:
    """Draw the page of one paper; `exhibit` in the URL chooses the figure or table."""
    exhibits = {exhibit.slug: exhibit for exhibit in of_paper(paper)}
    page.heading(
        PAPERS[paper],  # type: ignore[index]  # each page of the menu is of one of them
        f"{ABOUT[paper]} Its figures and tables, drawn from your own runs and evaluations.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    if not exhibits:
        st.info("There are no exhibits of this paper yet.", icon=":material/info:")
        return
    chosen = _pick(exhibits)
    show_exhibit(exhibits[chosen], sources, PAPERS[paper])  # type: ignore[index]  # likewise


def _pick(exhibits: dict[str, Exhibit]) -> str:
    """The exhibit in the URL, else the paper's first, and a picker to change it."""
    requested = url_value("exhibit")
    first = next(iter(exhibits))
    if requested is not None and requested not in exhibits:
        st.warning(f"Exhibit {code(requested)} is not in this paper: choose one below.")
    # Not `in_url`, which puts labels into the URL; links have slugs.
    st.session_state[PICKED] = requested if requested in exhibits else first
    st.pills(
        "Figure or table",
        list(exhibits),
        key=PICKED,
        format_func=lambda slug: exhibits[slug].label,
        required=True,
        on_change=_remember,
    )
    return st.session_state[PICKED]


def _remember() -> None:
    set_page_param("exhibit", st.session_state[PICKED])
