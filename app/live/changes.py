"""Changes of a live session: another method or budget in a lane, another question, a fork."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless, widget_options
from app.live.sessions import act, fork_session
from app.session.url_state import set_param
from kvlab.core.choice import FULL
from kvlab.core.errors import UserError
from kvlab.core.validation import quote_value
from kvlab.forms import compare_form
from kvlab.planning.methods import methods
from kvlab.planning.parameters import DEFAULT, PRESET
from kvlab.requests.live_session import LiveRequest

NEW_TOKENS = 64
AS_NOW = "as now"


def sampling() -> dict[str, float]:
    """How tokens are chosen, as fields of a job."""
    return {
        "max_new_tokens": int(st.session_state.get("new_tokens", NEW_TOKENS)),
        "temperature": float(st.session_state.get("temperature", 0.0)),
        "seed": int(st.session_state.get("seed", 0)),
    }


def change_lane(session: str, request: LiveRequest, number: int, is_busy: bool) -> None:
    """A menu with the lane's method, settings and budget; its button compresses the context again in this lane."""
    choice = request.lanes[number]
    key = f"live-lane-{number}"
    with st.popover("Change", **widget_options(request.why_fixed, key=key)):
        entries = {entry.name: entry for entry in methods() if entry.name != FULL.method}
        place = list(entries).index(choice.method) if choice.method in entries else 0
        entry = entries[st.selectbox("Method", list(entries), place, key=f"{key}-method")]
        presets = [AS_NOW] if entry.name == choice.method else []
        preset = st.selectbox("Settings", [*presets, DEFAULT, *entry.presets], key=f"{key}-settings")
        now = f"{100 * choice.budget:g}%" if isinstance(choice.budget, float) else quote_value(choice.budget)
        budget = st.text_input("Budget", now, key=f"{key}-budget", help="Such as 20%, 128 or 20%B")
        st.caption("Only this lane is compressed again; then all lanes answer the questions again.")
        why = request.why_fixed or ("An answer is being written." if is_busy else "")
        if button_unless("Change the lane", why, key=f"{key}-apply"):
            settings = {AS_NOW: choice.hyper_parameters, DEFAULT: {}}.get(preset, {PRESET: preset})
            try:
                (changed,) = compare_form.choices(
                    [entry], compare_form.parse_budgets(budget)[:1], {entry.name: settings}
                )
            except UserError as error:
                st.error(plain(str(error)))
                return
            if act(session, request, "lane", lane=number, choice=changed, **sampling()):
                st.rerun()


def change_question(session: str, request: LiveRequest, turn: int, question: str) -> None:
    """Beside a question: ask another in its place, or go on from before it in a new session."""
    key = f"live-turn-{turn}"
    with st.popover("Edit", key=key, help="Another question in place of this one; later ones are dropped"):
        edited = st.text_area("Question", question, key=f"{key}-text")
        why = "" if edited.strip() else "Type a question."
        if button_unless("Ask this instead", why, key=f"{key}-ask") and act(
            session, request, "again", question=edited, turn=turn, **sampling()
        ):
            st.rerun()
    help_text = "A new session with what was said before this question; this one stays"
    if st.button("Fork", help=help_text, key=f"{key}-fork"):
        set_param("session", fork_session(session, request, turn))
        st.rerun()
