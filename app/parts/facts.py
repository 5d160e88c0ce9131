"""The facts of a text, marked by clicking words or typed: kept in the session and, as places, in the address."""

from __future__ import annotations

import re

import streamlit as st

from app.parts.wordpicker import LONGEST_TEXT, Spans, word_picker, words_between
from kvlab.answers import find_facts
from kvlab.errors import UserError

PICKER, TYPED, KEPT, ADDRESS = "fact-picker", "facts", "facts-marked", "marked"


def facts_section(text: str, opened: bool = False) -> Spans:
    """The facts as spans of the text, those that were clicked first.

    Raises:
        UserError: words were typed that the text lacks.
    """
    with st.expander("Facts: the words of the text that the answer rests on (optional)", expanded=opened):
        typed = st.session_state.get(TYPED, st.query_params.get(TYPED, ""))
        problem, found = None, marked_in(text)
        try:
            found = (*found, *(fact for fact in find_facts(text, _lines(typed)) if fact not in found))
        except UserError as error:
            problem = error
        if text.strip():
            word_picker(text, found, PICKER, lambda: change(text, found))
        if len(text) > LONGEST_TEXT:
            st.caption(f"Words can be clicked in the first {LONGEST_TEXT:,} characters.")
        st.text_area(
            "Or type them as they stand in the text, one a line",
            key=TYPED,
            bind="query-params",
            height=68,
            help="The first place where the words stand counts. Without any fact, the place of the answer is taken.",
        )
    if problem is not None:
        raise problem
    return found


def change(text: str, shown: Spans) -> None:
    """Called before the script runs again: a fact was clicked together, or one of those shown was taken away."""
    told = st.session_state[PICKER]
    kept = list(marked_in(text))
    if (picked := told.get("picked")) is not None:
        fact = words_between(text, int(picked[0]), int(picked[1]))
        kept += [fact] if fact not in shown else []
    elif (place := told.get("removed")) is not None and int(place) < len(shown):
        away = shown[int(place)]
        kept = [fact for fact in kept if fact != away]
        lines = _lines(st.session_state.get(TYPED, ""))
        st.session_state[TYPED] = "\n".join(line for line in lines if find_facts(text, [line])[0] != away)
    keep(text, tuple(kept))


def keep(text: str, facts: Spans) -> None:
    """Remember the facts of this text."""
    st.session_state[KEPT] = (text, facts)
    if facts:
        st.query_params[ADDRESS] = ",".join(f"{start}-{stop}" for start, stop in facts)
    else:
        st.query_params.pop(ADDRESS, None)


def marked_in(text: str) -> Spans:
    """The facts that were clicked; in a text that changed since, those whose words it still has."""
    if KEPT not in st.session_state:
        places = re.findall(r"(\d{1,7})-(\d{1,7})", st.query_params.get(ADDRESS, ""))
        spans = tuple((int(start), int(stop)) for start, stop in places)
        return tuple(span for span in spans if span[0] < span[1] <= len(text))
    before, facts = st.session_state[KEPT]
    if before == text:
        return facts
    words = [before[start:stop] for start, stop in facts]
    return find_facts(text, [fact for fact in words if fact in text])


def _lines(typed: str) -> list[str]:
    return [line.strip() for line in typed.splitlines() if line.strip()]
