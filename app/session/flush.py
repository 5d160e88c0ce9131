"""What was drawn is on its way to the browser before a part of the page is drawn again.

When a part (`st.fragment`) is drawn again, Streamlit takes out of its queue what was drawn of that part and has not
left, and leaves in what was drawn of parts within that part. A browser that gets the inner part alone finds no place
for it and shows an empty window. So whatever holds parts within parts waits, at its end, until all of it has left.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from streamlit.runtime import get_instance
from streamlit.runtime.scriptrunner import get_script_run_ctx

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
