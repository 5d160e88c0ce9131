"""Record a session as a comparison, and open it on other pages at the selected lane, word and head."""

from __future__ import annotations

import streamlit as st

from app.base.links import go
from app.live.changes import sampling
from app.live.cursor import LANE, chosen_words, head_in_focus, place_of
from app.live.word_heads import known_heads
from app.navigation.selection import runs_root
from app.navigation.token_cursor import share_token
from app.queue.submit import queue_job
from app.session.url_state import remember
from kvlab.live.events import append_event
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import LiveRequest, comparison_of, runs_of_lanes


def record_comparison(session: str, request: LiveRequest, transcript: Transcript, question: str) -> None:
    """Queue the comparison, note it in the session's log, and open the page that shows its progress."""
    comparison = comparison_of(request, question, int(sampling()["max_new_tokens"]))
    job_id = queue_job(lambda: comparison)
    if job_id is None:
        return
    runs = runs_of_lanes(request, comparison, job_id)
    append_event(runs_root(), session, {"kind": "recorded", "comparison": job_id, "runs": runs})
    lane = int(st.session_state.get(LANE) or request.has_full_cache)
    words = chosen_words(transcript)
    if words is not None:
        share_token(job_id, words[1])
    place = place_of(words, head_in_focus(known_heads(session, transcript, lane), words and words[1]))
    for name in place.keys() & {"layer", "head"}:
        remember(name, place[name], url=False)
    go("new_run", job=job_id, run=runs[lane], **place)
