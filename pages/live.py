"""Live: talk to the full and to compressed caches side by side about one text."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.live.answers import is_presented, present
from app.live.conversation import POLL_SECONDS, ask, conversation
from app.live.sessions import request_of, running_job
from app.live.start import start_form
from app.navigation import context_bar
from app.run_views import page
from app.session.url_state import chosen_value, forget, get_param, go_to, remember
from kvlab.core.errors import UserError


def main() -> None:
    session = get_param("session") or chosen_value("session")
    if session is None or not is_presented():
        heading()
    if session is None:
        start_form()
        return
    try:
        request = request_of(session)
    except UserError as error:
        st.error(plain(str(error)))
        forget("session")
        start_form()
        return
    remember("session", session)
    context_bar.clicks(lambda place: go_to(**place))
    if is_presented():
        present(session, POLL_SECONDS)
    else:
        conversation(session, request)
    if question := st.chat_input("Ask all lanes", disabled=running_job(session) is not None, key="live-question"):
        ask(session, request, "ask", question)


def heading() -> None:
    page.heading(
        "Live",
        "Read a text once, then ask questions: the full cache and compressed ones answer side by side, and follow-up "
        "questions meet what is left of the text. Words are shaded by the **KL** of a lane's prediction from the full "
        "cache's; the word at which a text leaves the full cache's is underlined.",
    )


main()
