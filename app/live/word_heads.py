"""The chosen word of the context: which heads of a lane hold it, and how much the last answer attended to it."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.figures.figure import show
from app.live.sessions import act
from app.navigation.selection import runs_root
from app.session.url_state import set_page_param, url_number
from kvlab.analysis.attention.token_heads import read_token_heads
from kvlab.figures import token_heads as figures
from kvlab.live.log import heads_path
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import LiveRequest

WORD = "word"  # URL parameter: the token that was clicked
TEXT = "live-canvas"  # key of the text in which it is clicked


def remember_word() -> None:
    """Put the clicked token into the URL."""
    if (clicked := st.session_state[TEXT].get("chosen")) is not None:
        set_page_param(WORD, str(int(clicked[1])))


def chosen_word(transcript: Transcript) -> int | None:
    """The chosen token of the context; None if none is chosen."""
    word = url_number(WORD)
    return word if word is not None and word < len(transcript.texts) else None


def word_heads(session: str, request: LiveRequest, transcript: Transcript, lane: int, is_busy: bool) -> None:
    """Maps of all heads for the chosen word, once the worker has read the lane's heads; nothing without a word."""
    word = chosen_word(transcript)
    if word is None:
        return
    label = f"“{shorten(transcript.texts[word].strip(), 24)}” (token {word})"
    turn = len(transcript.turns)
    heads = read_token_heads(heads_path(runs_root(), session, lane)) if lane in transcript.heads_read else None
    if heads is None or heads.turn != turn or transcript.heads_read[lane] != turn or word >= heads.states.shape[2]:
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            why = permission.why_not() or ("An answer is being written." if is_busy else "")
            if permission.button("Read the heads", why, key="live-heads") and act(session, request, "heads", lane=lane):
                st.rerun()
            st.caption(plain(f"{label}: which heads hold it. The last answer is read once more, which takes as long."))
        return
    table, name, theme = heads.of_token(word), f"live-word-{word}", page_theme()
    source = f"{transcript.lanes[lane].label}, after {turn} questions"
    left, right = st.columns(2)
    with left:
        holding = figures.heads_that_hold(table, label, theme)
        show(holding, table, figures.read_heads_that_hold(table), "live-heads-hold", name, source)
    with right:
        attention = figures.attention_to_token(table, label, theme)
        show(attention, table, figures.read_attention_to_token(table), "live-heads-attend", f"{name}-attention", source)
