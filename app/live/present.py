"""The running session on a projector: the last question and its answers in large type, led by keys alone."""

from __future__ import annotations

from html import escape

import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import attempt, button_unless
from app.live.answers import answers_html
from app.live.cursor import LANE
from app.live.sessions import running_job, transcript_of, waiting
from app.navigation.selection import runs_root
from app.navigation.shortcuts import page_keys
from app.session.url_state import get_param, set_page_param, set_param, url_number
from kvlab import jobs
from kvlab.browser import read_static
from kvlab.common.formatting import format_bytes
from kvlab.live.transcript import Transcript

# URL parameter
PRESENT = "present"
YES = "yes"
BUTTON = ".st-key-{} button"
KEYS = (("n", "next lane"), ("a", "ask a question; Enter sends it"), ("s", "stop the answers"), ("Esc", "leave"))
TARGETS = {
    "n": BUTTON.format("live-next-lane"),
    "a": '[data-testid="stChatInput"] textarea',
    "s": BUTTON.format("live-present-stop"),
    "Escape": BUTTON.format("live-present-leave"),
}


def is_presented() -> bool:
    """Whether the address asks for the session as a presentation."""
    return get_param(PRESENT) == YES


def present(session: str, poll_seconds: float) -> None:
    """The last question with all answers, followed while a job of the session waits or runs."""
    st.html(f"<style>{read_static('live-present.css')}</style>")
    page_keys(steps=False, more=KEYS, targets=TARGETS)
    job = running_job(session)
    transcript = transcript_of(session)
    if job is None:
        last_answers(transcript, is_written=False)
    else:
        st.fragment(_follow, run_every=poll_seconds)(session)
    with st.container(horizontal=True, gap="small", key="live-present-controls"):
        lanes = sorted(transcript.lanes)
        st.button("Next lane (n)", key="live-next-lane", on_click=next_lane, args=(lanes,), disabled=len(lanes) < 2)
        if button_unless("Stop (s)", "" if job is not None else "Nothing is running.", key="live-present-stop"):
            assert job is not None
            attempt(lambda: jobs.cancel(runs_root(), job.job_id))
        if st.button("Leave (Esc)", key="live-present-leave"):
            set_param(PRESENT, None)
            st.rerun()


def _follow(session: str) -> None:
    """Draw what the job has written so far."""
    job = running_job(session)
    if job is None:
        st.rerun()
    last_answers(transcript_of(session), is_written=True)
    if job.position is not None:
        waiting(job, "")


def last_answers(transcript: Transcript, is_written: bool) -> None:
    """The last question and the answers of all lanes to it, with the bytes of the lane in focus."""
    if not transcript.is_read:
        st.caption("The context is read and compressed in every lane …")
        return
    lane = lane_in_focus(sorted(transcript.lanes))
    state = transcript.lanes[lane]
    if not transcript.turns:
        st.html('<div class="kv-present-question">Ask the first question: press a.</div>')
        return
    turn = transcript.turns[-1]
    st.html(f'<div class="kv-present-question">{escape(turn.question)}</div>')
    st.html(answers_html(turn, transcript.lanes, page_theme(), is_written, focus=lane))
    share = 100 * state.live_bytes / max(transcript.full_bytes, 1)
    st.markdown(
        f"**{plain(state.label)}**: {plain(format_bytes(state.live_bytes))}, {share:.0f} % of the full cache, after "
        f"{transcript.tokens_seen:,} tokens"
    )


def lane_in_focus(lanes: list[int]) -> int:
    """The lane in the URL, else the first beside the reference."""
    lane = url_number(LANE)
    return lane if lane in lanes else lanes[min(1, len(lanes) - 1)]


def next_lane(lanes: list[int]) -> None:
    """Callback: put the next lane into focus."""
    place = lanes.index(lane_in_focus(lanes))
    set_page_param(LANE, lanes[(place + 1) % len(lanes)])
