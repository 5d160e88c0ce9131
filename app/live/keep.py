"""Keep a lane of a live session as a prefix, which opens in a second where its text would be read again."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.widgets import attempt, button_unless, widget_options
from app.live.sessions import act
from app.navigation.selection import runs_root
from kvlab.common.lab_file import lab
from kvlab.library.prefixes import free_path, proposed_name
from kvlab.live.transcript import LaneState
from kvlab.requests.live_session import LiveRequest

YOURS = " On this server you alone see it."


def keep_lane(session: str, request: LiveRequest, number: int, lane: LaneState, is_busy: bool) -> None:
    """A menu with the name of the prefix; its button lets the worker write the lane as it was after the context."""
    key = f"live-keep-{number}"
    why = why_not_keep(request, number, lane, is_busy)
    with st.popover("Keep as prefix", **widget_options(why, key=key)):
        proposed = proposed_name(runs_root(), request.context, request.lanes[number])
        name = st.text_input("Name", proposed, key=f"{key}-name").strip()
        st.caption(
            "The lane is kept as it was after the context: questions and answers are not in it. It opens here as the "
            "context of a new session, and with kvlab prefix ask." + (YOURS if lab() is not None else "")
        )
        is_asked = button_unless("Keep", why, key=f"{key}-apply")
        is_free = is_asked and attempt(lambda: free_path(runs_root(), name))
        if is_free and act(session, request, "keep", lane=number, name=name):
            st.rerun()
        if lane.kept:
            st.success(plain(f"Kept as {lane.kept}."))
    if lane.kept:
        st.caption(plain(f"Kept as {lane.kept}."))


def why_not_keep(request: LiveRequest, number: int, lane: LaneState, is_busy: bool) -> str:
    """Why a lane cannot be kept now; empty if it can."""
    why = request.why_not_kept(number)
    why = why or ("This lane has failed, so there is nothing to keep." if lane.failure else "")
    return why or ("The worker is busy with this session." if is_busy else "")
