"""The page of one paper: its exhibits by number, and the one that is chosen."""

from __future__ import annotations

import streamlit as st

from app.atlas.exhibit import show_exhibit
from app.base.text import code
from app.navigation.selection import current_sources
from app.run_views import page
from app.run_views.require_level import warn_of_reference
from app.session.url_state import asked_for, keep
from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.registry import PAPERS, of_paper

PICKED = "pick_exhibit"
ABOUT = {
    "zsmerge": "Each head's budget is split into recent, context and residual slots; what must leave is averaged into "
    "residual slots that remember how many tokens they stand for.",
    "kvmerger": "Neighbouring tokens have similar keys; runs of them are merged toward a pivot by a Gaussian kernel. "
    "The paper evicts nothing; here what is over the budget at its threshold is evicted.",
    "pyramid-pool": "The oldest tokens are pooled in windows, again and again, with budgets that shrink with depth.",
    "keepkv": "Merging makes attention sag; electoral votes and a rule without perturbation keep a slot's influence.",
    "gvote": "No budget is asked for: queries sampled from a Gaussian cast ballots, and their union is what stays.",
    "beyond": "What newer methods claim, as far as a small model and its tasks can check it.",
}


def paper_page(paper: str) -> None:
    """Draws the page of one paper; `exhibit` in the address chooses the figure or table."""
    exhibits = {exhibit.slug: exhibit for exhibit in of_paper(paper)}
    page.heading(
        PAPERS[paper],  # type: ignore[index]
        f"{ABOUT[paper]} Its figures and tables, drawn from your own runs and evaluations.",
    )
    sources = current_sources()
    if sources.runs:
        warn_of_reference(sources.runs)
    if not exhibits:
        st.info("Nothing of this paper is drawn yet.", icon=":material/info:")
        return
    chosen = _pick(exhibits)
    show_exhibit(exhibits[chosen], sources, PAPERS[paper])  # type: ignore[index]


def _pick(exhibits: dict[str, Exhibit]) -> str:
    """The exhibit the address names, changeable here; the paper's first where it names none that exists."""
    asked, first = asked_for("exhibit"), next(iter(exhibits))
    if asked is not None and asked not in exhibits:
        st.warning(f"Exhibit {code(asked)} is not in this paper: choose one below.")
    # Bound by hand: a bound widget puts its labels into the address, and links are made of slugs.
    st.session_state[PICKED] = asked if asked in exhibits else first
    st.pills(
        "Figure or table",
        list(exhibits),
        key=PICKED,
        format_func=lambda slug: exhibits[slug].number,
        required=True,
        on_change=_remember,
    )
    return st.session_state[PICKED]


def _remember() -> None:
    keep("exhibit", st.session_state[PICKED])
