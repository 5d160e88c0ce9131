"""A part of a page is drawn again only once what was drawn before has left: the browser needs a place for it."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from app.session import streamlit_internals


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The queue of a session, its server in a thread of its own; `sessions` holds it while the browser is there."""
    loop, found = asyncio.new_event_loop(), ForwardMsgQueue()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    session = SimpleNamespace(_event_loop=loop, _browser_queue=found)
    sessions = {"one": SimpleNamespace(session=session)}
    runtime = SimpleNamespace(_session_mgr=SimpleNamespace(get_active_session_info=sessions.get))
    monkeypatch.setattr(streamlit_internals, "get_instance", lambda: runtime)
    monkeypatch.setattr(streamlit_internals, "get_script_run_ctx", lambda **_: SimpleNamespace(session_id="one"))
    yield SimpleNamespace(loop=loop, queue=found, sessions=sessions)
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()


def taken() -> float:
    begun = time.monotonic()
    streamlit_internals.wait_until_sent()
    return time.monotonic() - begun


def test_it_waits_for_what_is_about_to_enter_the_queue_and_until_that_has_left(
    queue: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streamlit_internals, "SEND_TIMEOUT_SECONDS", 60)
    left: list[bool] = []

    def leave() -> None:
        queue.queue.flush()
        left.append(True)

    def enter() -> None:
        queue.queue._queue.append("drawn")
        queue.loop.call_later(0.1, leave)

    queue.loop.call_soon_threadsafe(enter)
    streamlit_internals.wait_until_sent()
    assert left == [True]


def test_a_browser_that_reads_nothing_keeps_nobody_waiting(queue: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streamlit_internals, "SEND_TIMEOUT_SECONDS", 0.2)
    queue.queue._queue.append("drawn")
    assert 0.2 <= taken() < 5
    assert queue.queue._queue == ["drawn"]
    queue.sessions.clear()
    monkeypatch.setattr(streamlit_internals, "SEND_TIMEOUT_SECONDS", 60)
    assert taken() < 5, "the browser has gone"


def test_a_streamlit_that_keeps_its_queue_in_another_way_is_not_waited_for(queue: Any):
    queue.sessions["one"] = SimpleNamespace(session=SimpleNamespace())
    streamlit_internals.wait_until_sent()
