"""Glossary: the terms of all pages in plain words, the main ones with a short animation. `?term=` chooses one."""

from __future__ import annotations

import streamlit as st

from app.base.terms import TERMS
from app.base.theme import theme
from app.glossary_scenes import SCENES, svg
from app.run_views import page
from app.session.url_state import drop_stale_option, in_url

EVERY = "all terms"
PER_ROW = 2


def main() -> None:
    page.heading("Glossary", "The terms of the pages in plain words. The animations repeat every five seconds.")
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left:
        term = st.selectbox("Term", [EVERY, *TERMS], **in_url("term"))
    drop_stale_option("play", (True, False))  # the timeline has a choice of this name
    with right:
        plays = st.toggle("Play the animations", value=True, **in_url("play"))
    if term != EVERY:
        card(term, plays)
        return
    scenes = list(SCENES)
    for start in range(0, len(scenes), PER_ROW):
        for column, name in zip(st.columns(PER_ROW, gap="medium"), scenes[start : start + PER_ROW], strict=False):
            with column:
                card(name, plays)
    st.header("More terms")
    for name, words in TERMS.items():
        if name not in SCENES:
            st.markdown(f"**{name}**: {words}")


def card(term: str, plays: bool) -> None:
    """A term with its animation, if it has one, and its meaning."""
    with st.container(border=True, key=f"glossary-{term.replace(' ', '-')}"):
        st.markdown(f"**{term}**")
        if term in SCENES:
            st.image(svg(term, theme(), plays), width="stretch", alt=SCENES[term].told)
        st.markdown(TERMS[term])


main()
