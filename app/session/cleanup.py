"""What a session keeps of pages it has left: Streamlit holds on to what each widget of each was made with."""

from __future__ import annotations

from contextlib import suppress

from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state import SafeSessionState

from app.session.fragment import drawn_alone

SHOWN = "$$ID"  # how the name of a widget on a page begins; what components keep beside theirs begins otherwise


def forget_left_behind() -> None:
    """Call when the page has run: forgets what widgets were made with that it does not show.

    Streamlit drops the values of a page that was left when the next has run, and its callbacks, with the runs and
    figures in them, only when the session ends. Those that the address speaks for stay, as their values are read once
    more. This looks into the session itself: a Streamlit that keeps it in another way goes on as it does.
    """
    context = get_script_run_ctx()
    if context is None or drawn_alone():
        return
    with suppress(AttributeError), context.session_state._lock:
        here, state = context.shared.widget_ids_this_run.snapshot(), context.session_state._state
        while isinstance(state, SafeSessionState):  # as in a test of a page
            state = state._state
        made = state._new_widget_state.widget_metadata
        for name in made.keys() - here - state._query_param_bound_widget_ids:
            if name.startswith(SHOWN):
                del made[name]
