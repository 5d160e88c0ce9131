"""The conversation of a live session: bytes of the lanes, questions with all answers, what is left of the text."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import attempt, button_unless
from app.live.answers import answers_html
from app.live.changes import NEW_TOKENS, change_lane, change_question, sampling
from app.live.context_text import what_is_left
from app.live.keep import keep_lane
from app.live.present import PRESENT, YES
from app.live.record import record_comparison
from app.live.replay import replay_section
from app.live.sessions import act, last_failure, running_job, transcript_of, waiting
from app.navigation.selection import runs_root
from app.session.url_state import forget, in_url, set_param
from kvlab import jobs
from kvlab.browser import read_static
from kvlab.common.formatting import format_bytes
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import Action, LiveRequest
from kvlab.views.base.palette import SURFACES

LAST_TURN = "live-last-turn"  # key of the last question with its answers, which live.css keeps in view
# answers, and what is left of the context
POLL_SECONDS = 0.15
CONTEXT_SECONDS = 0.75


def conversation(session: str, request: LiveRequest) -> None:
    """The whole conversation, followed while a job of the session waits or runs."""
    st.html(f"<style>:root {{ --kv-ground: {SURFACES[page_theme()]}; }} {read_static('live.css')}</style>")
    job = running_job(session)
    transcript = transcript_of(session)
    if failure := last_failure(session):
        st.error(plain(failure))
    for note in transcript.notes[-1:]:
        st.info(plain(note), icon=":material/info:")
    if transcript.is_read:
        meters(session, request, transcript, is_busy=job is not None)
    if transcript.is_read:
        if job is None:
            what_is_left(session, request, transcript, is_busy=False)
        else:
            st.fragment(_follow_context, run_every=CONTEXT_SECONDS)(session, request)
    if job is None:
        show_questions(session, request, transcript, None)
    else:
        st.fragment(_follow, run_every=POLL_SECONDS)(session, request, transcript.is_read)
    if transcript.is_read:
        controls(session, request, transcript, job)


def _follow(session: str, request: LiveRequest, is_read: bool) -> None:
    """Draw what the job has written so far; little is drawn again, as this runs several times per second."""
    job = running_job(session)
    transcript = transcript_of(session)
    if job is None or transcript.is_read != is_read:
        st.rerun()
    show_questions(session, request, transcript, job)


def _follow_context(session: str, request: LiveRequest) -> None:
    """Draw what is left of the context, less often than the answers, because it takes longer."""
    what_is_left(session, request, transcript_of(session), is_busy=True)


def show_questions(session: str, request: LiveRequest, transcript: Transcript, job: jobs.JobStatus | None) -> None:
    """Questions with their answers."""
    if not transcript.is_read:
        reading = "The context is read and compressed in every lane …"
        waiting(job, "The prefixes are opened and verified …" if request.prefixes else reading)
        return
    for number, turn in enumerate(transcript.turns):
        is_last = number == len(transcript.turns) - 1
        with st.container(key=LAST_TURN if is_last else None):
            with st.chat_message("user"), st.container(horizontal=True, gap="small", vertical_alignment="center"):
                st.text(turn.question, width="stretch")
                if job is None:
                    change_question(session, request, number, turn.question)
            st.html(answers_html(turn, transcript.lanes, page_theme(), is_written=job is not None and is_last))
    answers = transcript.turns[-1].answers if transcript.turns else {}
    if job is not None and transcript.turns and not answers:
        waiting(job, "The question is read …")
    elif job is not None and all(answer.reason for answer in answers.values()):  # it has not begun to write
        waiting(job, f"The worker is at work: {job.title}")


def meters(session: str, request: LiveRequest, transcript: Transcript, is_busy: bool) -> None:
    """Bytes of every lane beside the full cache's, and menus to change the lane and to keep it.

    A lane is over its budget by what it has added since the context was compressed, such as tokens of answers.
    """
    for column, (number, lane) in zip(st.columns(len(transcript.lanes)), sorted(transcript.lanes.items()), strict=True):
        share = f"{100 * lane.live_bytes / max(transcript.full_bytes, 1):.0f} % of the full cache"
        detail = share if number else f"{transcript.tokens_seen:,} tokens seen"
        if number == 0 and not request.has_full_cache:
            detail += f" · {share}"
        if request.prefixes:
            detail += f" · prefix {request.prefixes[number]}"
        with column:
            if number and lane.live_bytes > lane.settled_bytes:
                detail += f" · {format_bytes(lane.live_bytes - lane.settled_bytes)} over its budget"
            st.markdown(f"**{plain(lane.label)}**  \n{plain(format_bytes(lane.live_bytes))} · {plain(detail)}")
            if lane.failure:
                st.error(plain(lane.failure))
            with st.container(horizontal=True, gap="small"):
                if number:
                    change_lane(session, request, number, is_busy)
                if not request.prefixes:
                    keep_lane(session, request, number, lane, is_busy)
    if not request.has_full_cache and request.choices:
        first = transcript.lanes[0].label
        st.caption(plain(f"No lane is the full cache: the others are compared with the first, {first}."))


def controls(session: str, request: LiveRequest, transcript: Transcript, job: jobs.JobStatus | None) -> None:
    """Buttons of the conversation, and how answers are drawn."""
    why = "" if job is None else "An answer is being written."
    with st.container(horizontal=True, gap="small", key="live-controls"):
        if button_unless("Stop", "" if job is not None else "Nothing is running.", key="live-stop"):
            assert job is not None
            attempt(lambda: jobs.cancel(runs_root(), job.job_id))
        last = transcript.turns[-1].question if transcript.turns else ""
        if button_unless("Answer again", why or ("" if last else "Nothing was asked yet."), key="live-again"):
            ask(session, request, "again", last)
        if button_unless("Begin again", why, key="live-restart") and act(session, request, "restart"):
            st.rerun()
        help_text = "Runs the lanes on context and last question as one recorded prompt, for every other page."
        if button_unless("Record a comparison", why_no_comparison(last), help=help_text, key="live-compare"):
            record_comparison(session, request, transcript, last)
        if st.button("Present", help="The running session in large type, led by keys", key="live-present-now"):
            set_param(PRESENT, YES)
            st.rerun()
        if st.button("New session", key="live-new"):
            forget("session")
            st.rerun()
        if job is None:
            st.toggle("Replay", help="Play the session step by step, in a tab or as a file.", **in_url("replay"))
        with st.popover("Sampling"):
            st.number_input("Most new tokens", 1, 2048, NEW_TOKENS, **in_url("new_tokens"))
            st.number_input("Temperature", 0.0, 5.0, 0.0, 0.1, **in_url("temperature"))
            st.number_input("Seed", 0, 2**31 - 1, 0, **in_url("seed"))
    if job is None and st.session_state.get("replay"):
        replay_section(session, request)


def why_no_comparison(question: str) -> str:
    """Why the session cannot be recorded; empty if it can."""
    return "" if question else "Ask a question first."


def ask(session: str, request: LiveRequest, action: Action, question: str) -> None:
    """Queue a question and show its answers."""
    if act(session, request, action, question=question, **sampling()):
        st.rerun()
