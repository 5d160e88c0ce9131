"""The facts of a text, marked by clicking words or typed: kept in the session and, on New run, in the address."""

from __future__ import annotations

import re
from dataclasses import dataclass

import streamlit as st

from app.components.wordpicker import LONGEST_TEXT, Spans, word_picker, words_between
from kvlab.common.errors import UserError
from kvlab.requests.facts import find_facts

ADDRESS = "marked"


@dataclass(frozen=True)
class FactKeys:
    """Where the facts of one text lie in the session: of New run, or of what is named, such as a comparison."""

    name: str = ""

    @property
    def picker(self) -> str:
        return f"fact-picker{self.name and '-'}{self.name}"

    @property
    def typed(self) -> str:
        return f"facts{self.name and '-'}{self.name}"

    @property
    def kept(self) -> str:
        return f"facts-marked{self.name and '-'}{self.name}"


NEW_RUN = FactKeys()


def facts_section(text: str, opened: bool = False) -> Spans:
    """The facts of New run as spans of the text, those that were clicked first; raises as `fact_picker`."""
    with st.expander("Facts: the words of the text that the answer rests on (optional)", expanded=opened):
        try:
            return fact_picker(text, NEW_RUN)
        except UserError as error:
            problem = error
    raise problem


def fact_picker(text: str, keys: FactKeys, first: Spans = ()) -> Spans:
    """The text to click facts in, and room to type them; `first` are those marked before anybody clicked.

    Raises:
        UserError: words were typed that the text lacks.
    """
    if first:
        st.session_state.setdefault(keys.kept, (text, first))
    typed = st.session_state.get(keys.typed, st.query_params.get(keys.typed, ""))
    problem, found = None, marked_in(text, keys)
    try:
        found = (*found, *(fact for fact in find_facts(text, _lines(typed)) if fact not in found))
    except UserError as error:
        problem = error
    if text.strip():
        word_picker(text, found, keys.picker, lambda: change(text, found, keys))
    if len(text) > LONGEST_TEXT:
        st.caption(f"Words can be clicked in the first {LONGEST_TEXT:,} characters.")
    st.text_area(
        "Or type them as they stand in the text, one a line",
        key=keys.typed,
        bind="query-params",
        height=68,
        help="The first place where the words stand counts. Without any fact, the place of the answer is taken.",
    )
    if problem is not None:
        raise problem
    return found


def change(text: str, shown: Spans, keys: FactKeys = NEW_RUN) -> None:
    """Called before the script runs again: a fact was clicked together, or one of those shown was taken away."""
    told = st.session_state[keys.picker]
    kept = list(marked_in(text, keys))
    if (picked := told.get("picked")) is not None:
        fact = words_between(text, int(picked[0]), int(picked[1]))
        kept += [fact] if fact not in shown else []
    elif (place := told.get("removed")) is not None and int(place) < len(shown):
        away = shown[int(place)]
        kept = [fact for fact in kept if fact != away]
        lines = _lines(st.session_state.get(keys.typed, ""))
        st.session_state[keys.typed] = "\n".join(line for line in lines if find_facts(text, [line])[0] != away)
    keep(text, tuple(kept), keys)


def keep(text: str, facts: Spans, keys: FactKeys = NEW_RUN) -> None:
    """Remember the facts of this text."""
    st.session_state[keys.kept] = (text, facts)
    if keys.name:
        return
    if facts:
        st.query_params[ADDRESS] = ",".join(f"{start}-{stop}" for start, stop in facts)
    else:
        st.query_params.pop(ADDRESS, None)


def marked_in(text: str, keys: FactKeys = NEW_RUN) -> Spans:
    """The facts that were clicked; in a text that changed since, those whose words it still has."""
    if keys.kept not in st.session_state:
        places = [] if keys.name else re.findall(r"(\d{1,7})-(\d{1,7})", st.query_params.get(ADDRESS, ""))
        spans = tuple((int(start), int(stop)) for start, stop in places)
        return tuple(span for span in spans if span[0] < span[1] <= len(text))
    before, facts = st.session_state[keys.kept]
    if before == text:
        return facts
    words = [before[start:stop] for start, stop in facts]
    return find_facts(text, [fact for fact in words if fact in text])


def _lines(typed: str) -> list[str]:
    return [line.strip() for line in typed.splitlines() if line.strip()]
