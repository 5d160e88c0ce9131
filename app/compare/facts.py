"""The facts of a text, marked by clicking words or typed; stored in the session and, on New, in the URL."""

import re
from dataclasses import dataclass

import streamlit as st

from app.components import LONGEST_TEXT, Spans, word_picker, words_between
from app.session.url_state import get_param, in_url, set_param
from kvlab.core.errors import UserError
from kvlab.requests.facts import find_facts

PARAM = "marked"


@dataclass(frozen=True)
class FactKeys:
    """Session keys for the facts of one text: that of New, or of a comparison."""

    picker: str = "fact-picker"
    typed: str = "facts"
    marked: str = "facts-marked"


NEW_RUN = FactKeys()


def facts_section(text: str, opened: bool = False) -> Spans:
    """The facts of New as spans of the text, clicked ones first; raises as `fact_picker`."""
    with st.expander("Facts: the words of the text that the answer depends on (optional)", expanded=opened):
        try:
            return fact_picker(text, NEW_RUN)
        except UserError as error:
            problem = error
    raise problem


def fact_picker(text: str, keys: FactKeys, first: Spans = ()) -> Spans:
    """Widgets to click facts in the text or to type them; `first` are those marked initially.

    Raises:
        UserError: typed words are not in the text.
    """
    if first:
        st.session_state.setdefault(keys.marked, (text, first))
    typed = st.session_state.get(keys.typed, get_param(keys.typed) or "")
    problem = None
    facts = marked_in(text, keys)
    try:
        facts = (*facts, *(fact for fact in find_facts(text, _lines(typed)) if fact not in facts))
    except UserError as error:
        problem = error
    if text.strip():
        word_picker(text, facts, keys.picker, lambda: change(text, facts, keys))
    if len(text) > LONGEST_TEXT:
        st.caption(f"Words can be clicked in the first {LONGEST_TEXT:,} characters.")
    st.text_area(
        "Or type them as they are in the text, one per line",
        **in_url(keys.typed),
        height=68,
        help="The first occurrence is used. Without facts, the place of the answer is used.",
    )
    if problem is not None:
        raise problem
    return facts


def change(text: str, shown: Spans, keys: FactKeys = NEW_RUN) -> None:
    """Callback: a fact was clicked, or one of those shown was removed."""
    event = st.session_state[keys.picker]
    facts = list(marked_in(text, keys))
    if (picked := event.get("picked")) is not None:
        fact = words_between(text, int(picked[0]), int(picked[1]))
        facts += [fact] if fact not in shown else []
    elif (index := event.get("removed")) is not None and int(index) < len(shown):
        removed = shown[int(index)]
        facts = [fact for fact in facts if fact != removed]
        lines = _lines(st.session_state.get(keys.typed, ""))
        st.session_state[keys.typed] = "\n".join(line for line in lines if find_facts(text, [line])[0] != removed)
    store(text, tuple(facts), keys)


def store(text: str, facts: Spans, keys: FactKeys = NEW_RUN) -> None:
    """Store the facts of this text in the session and, for New run, in the URL."""
    st.session_state[keys.marked] = (text, facts)
    if keys != NEW_RUN:
        return
    set_param(PARAM, ",".join(f"{start}-{stop}" for start, stop in facts) or None, force=True)


def marked_in(text: str, keys: FactKeys = NEW_RUN) -> Spans:
    """The facts that were clicked; if the text has changed since, those whose words it still has."""
    if keys.marked not in st.session_state:
        places = [] if keys != NEW_RUN else re.findall(r"(\d{1,7})-(\d{1,7})", get_param(PARAM) or "")
        spans = tuple((int(start), int(stop)) for start, stop in places)
        return tuple(span for span in spans if span[0] < span[1] <= len(text))
    before, facts = st.session_state[keys.marked]
    if before == text:
        return facts
    words = [before[start:stop] for start, stop in facts]
    return find_facts(text, [fact for fact in words if fact in text])


def _lines(typed: str) -> list[str]:
    return [line.strip() for line in typed.splitlines() if line.strip()]
