"""The chosen words of the context: what a lane does with them, which heads hold them, how much an answer read them."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.text import shorten
from app.base.theme import theme as page_theme
from app.figures.figure import show
from app.live.sessions import act
from app.live.word_edits import word_edits
from app.navigation.selection import runs_root
from app.session.url_state import set_page_param, url_number, url_numbers
from kvlab.analysis.attention.token_heads import read_token_heads
from kvlab.figures import token_heads as figures
from kvlab.live.log import heads_path
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import LiveRequest
from kvlab.requests.restore import token_words

WORD = "word"  # URL parameter: the chosen tokens, such as 571 or 571-574
TEXT = "live-canvas"  # key of the text in which they are chosen


def remember_words() -> None:
    """Put the chosen tokens into the URL."""
    if (chosen := st.session_state[TEXT].get("chosen")) is not None:
        first, last = int(chosen[0]), int(chosen[1])
        set_page_param(WORD, str(last) if first == last else f"{first}-{last}")


def chosen_words(transcript: Transcript) -> tuple[int, int] | None:
    """First and last of the chosen tokens of the context; None if none are chosen."""
    word = url_number(WORD)
    words = url_numbers(WORD, 2) or ([word, word] if word is not None else None)
    return (words[0], words[1]) if words and words[0] <= words[1] < len(transcript.texts) else None


def word_heads(session: str, request: LiveRequest, transcript: Transcript, lane: int, is_busy: bool) -> None:
    """Draw the edits of the chosen words, and maps of all heads for the last of them; nothing without a choice.

    The worker reads the lane's heads on request.
    """
    words = chosen_words(transcript)
    if words is None:
        return
    word, turn = words[1], len(transcript.turns)
    text = "".join(transcript.texts[words[0] : words[1] + 1]).strip()
    label = f"“{shorten(text, 24)}” ({token_words(range(words[0], words[1] + 1))})"
    heads = read_token_heads(heads_path(runs_root(), session, lane)) if lane in transcript.heads_read else None
    is_read = heads is not None and heads.turn == turn == transcript.heads_read[lane] and word < heads.states.shape[2]
    word_edits(session, request, lane, words, label, heads if is_read else None, is_busy)
    if heads is None or not is_read:
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            why = permission.why_not() or ("An answer is being written." if is_busy else "")
            if permission.button("Read the heads", why, key="live-heads") and act(session, request, "heads", lane=lane):
                st.rerun()
            st.caption("Shows which heads hold it. The last answer is read once more, which takes as long.")
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
