"""Atlas: every figure and table of the five papers at a glance, drawn from what is in view."""

from __future__ import annotations

import streamlit as st

from app.parts import page
from app.parts.cards import card, state
from app.state import current_sources
from kvlab.atlas.registry import PAPERS, of_paper


def main() -> None:
    page.heading(
        "Atlas",
        "Every figure and table of the five papers, drawn from the comparison in view and from the evaluations and "
        "benchmarks in its folder. A badge says whether the paper's claim holds on this data; a dashed card names the "
        "command that fills it.",
    )
    sources = current_sources()
    stamp = sources.stamp()
    counts = st.empty()
    drawn = total = 0
    for paper, title in PAPERS.items():
        st.subheader(title, anchor=paper)
        with st.container(horizontal=True, gap="small"):
            for exhibit in of_paper(paper):
                found = state(exhibit, sources, stamp)
                card(exhibit, found)
                total, drawn = total + 1, drawn + bool(found.origin)
    counts.caption(f"{drawn} of {total} can be drawn from what is in view.")


main()
