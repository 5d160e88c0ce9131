"""Whether Streamlit draws the page, or a part of it alone (`st.fragment`)."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from streamlit.runtime import get_instance
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state import SafeSessionState


def drawn_alone() -> bool:
    """True while only a part of the page is drawn again, False while all of it is, and where nothing is drawn."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and bool(context.fragment_ids_this_run)


PATIENCE_SECONDS = 1.0  # a browser that reads nothing for so long keeps nobody waiting
LOOK_SECONDS = 0.004


def wait_until_sent() -> None:
    """Call where a page, or a part of it with parts within, ends; Streamlit looks into its queue every 10 ms.

    It looks into the session itself: with a Streamlit that keeps its queue in another way this returns at once.
    """
    context, until = get_script_run_ctx(suppress_warning=True), time.monotonic() + PATIENCE_SECONDS
    if context is None:
        return
    with suppress(AttributeError, RuntimeError):  # no server, as in a test of a page; a loop that is closed
        found = get_instance()._session_mgr.get_active_session_info(context.session_id)
        if found is None:
            return
        queued = threading.Event()  # what was drawn enters the queue in the thread of the server, in turn
        found.session._event_loop.call_soon_threadsafe(queued.set)
        queued.wait(PATIENCE_SECONDS)
        while not found.session._browser_queue.is_empty() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


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
