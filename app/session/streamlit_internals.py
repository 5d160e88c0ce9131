"""Everything that touches Streamlit's private API, so that an upgrade has one file to check. Written for 1.63 to 1.67.

- `script_run_ctx.fragment_ids_this_run` tells a fragment rerun from a full run; no public function does.
- `AppSession._browser_queue` and `_event_loop` show whether the browser has received a run's messages. Streamlit clears
  that queue when the next run starts, and with it elements that fragments of that run need
  (streamlit/streamlit#9187, #9381).
- `SessionState._new_widget_state` holds the metadata of every widget, callbacks included, until the session ends. The
  callbacks of pages that were left keep their runs and figures in memory. No upstream issue was found.
- `runtime.exists` tells a thread that the server is ready; `web.cli.main` starts it in this process.
- `auth_util`, `server_util` and the Starlette modules decode the cookie that `st.login` sets. Streamlit reads it for
  scripts (`st.user`) but not for media files and uploads, which the gate protects.
- `STATIC` is the folder of the frontend's scripts: sent in one write each, preloaded, and named in the content security
  policy.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import streamlit
from streamlit import runtime
from streamlit.auth_util import get_cookie_with_chunks
from streamlit.runtime import get_instance
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state import SafeSessionState
from streamlit.web import cli
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

STATIC = Path(streamlit.__file__).with_name("static")
SEND_TIMEOUT_SECONDS = 1.0  # how long a run waits for a browser that reads nothing
POLL_SECONDS = 0.004
ELEMENT_ID_PREFIX = "$$ID"  # of widgets on a page; internal widgets of components have other prefixes

run_server = cli.main
server_is_running = runtime.exists


def is_fragment_run() -> bool:
    """Whether only a fragment is rerun; False during a full run, and outside of runs."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and bool(context.fragment_ids_this_run)


def wait_until_sent() -> None:
    """Wait until the browser has received the run's messages; call at the end of a page or of an outer fragment.

    Returns at once where another Streamlit version has another queue.
    """
    context = get_script_run_ctx(suppress_warning=True)
    deadline = time.monotonic() + SEND_TIMEOUT_SECONDS
    if context is None:
        return
    with suppress(AttributeError, RuntimeError):  # no server, as in a page test; a closed loop
        info = get_instance()._session_mgr.get_active_session_info(context.session_id)
        if info is None:
            return
        enqueued = threading.Event()  # the server's thread enqueues messages in order, so this comes after the last one
        info.session._event_loop.call_soon_threadsafe(enqueued.set)
        enqueued.wait(SEND_TIMEOUT_SECONDS)
        while not info.session._browser_queue.is_empty() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def drop_stale_widgets() -> None:
    """Drop the metadata of widgets that the page which just ran does not show; call at the end of a full run.

    Widgets bound to a URL parameter stay, as Streamlit reads their values once more.
    """
    context = get_script_run_ctx()
    if context is None or is_fragment_run():
        return
    with suppress(AttributeError), context.session_state._lock:
        shown = context.shared.widget_ids_this_run.snapshot()
        state = context.session_state._state
        while isinstance(state, SafeSessionState):  # nested in page tests
            state = state._state
        metadata = state._new_widget_state.widget_metadata
        for name in metadata.keys() - shown - state._query_param_bound_widget_ids:
            if name.startswith(ELEMENT_ID_PREFIX):
                del metadata[name]


def claim_in_cookie(cookies: Mapping[str, str], claim: str) -> str:
    """The user's value of an OIDC claim; "" where nobody is signed in, or the cookie was altered."""
    found = get_cookie_with_chunks(
        lambda name: decode_signed_value(get_cookie_secret(), name, cookies.get(name, "")), USER_COOKIE_NAME
    )
    identity = json.loads(found or "{}")
    return str(identity.get(claim) or "") if identity.get("is_logged_in") else ""
