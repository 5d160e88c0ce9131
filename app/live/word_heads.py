"""The chosen words of the context: what a lane does with them, which heads hold them, how much an answer read them."""

from __future__ import annotations

import streamlit as st

from app.base.text import shorten
from app.base.theme import theme as page_theme
from app.base.widgets import button_unless
from app.figures.figure import show
from app.live.cursor import chosen_words, head_in_focus
from app.live.sessions import act
from app.live.word_edits import word_edits
from app.navigation.selection import runs_root
from kvlab.core.restore import token_words
from kvlab.figures import token_heads as figures
from kvlab.live.events import heads_path
from kvlab.live.transcript import Transcript
from kvlab.requests.live_session import LiveRequest
from kvlab.views.base.head_map import caption_focus
from kvlab.views.frames.token_heads import TokenHeads, read_token_heads


def known_heads(session: str, transcript: Transcript, lane: int) -> TokenHeads | None:
    """The heads of a lane as they were read after its last answer; None if they were not."""
    turn = len(transcript.turns)
    if transcript.heads_read.get(lane) != turn:
        return None
    heads = read_token_heads(heads_path(runs_root(), session, lane))
    return heads if heads is not None and heads.turn == turn else None


def word_heads(
    session: str, request: LiveRequest, transcript: Transcript, lane: int, heads: TokenHeads | None, is_busy: bool
) -> None:
    """Draw the edits of the chosen words, and maps of all heads for the last of them; nothing without a choice.

    `heads` are the lane's, if they were read. The worker reads them on request.
    """
    words = chosen_words(transcript)
    if words is None:
        return
    word = words[1]
    text = "".join(transcript.texts[words[0] : word + 1]).strip()
    label = f"“{shorten(text, 24)}” ({token_words(range(words[0], word + 1))})"
    heads = heads if heads is not None and word < heads.states.shape[2] else None
    word_edits(session, request, lane, words, label, heads, is_busy)
    if heads is None:
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            why = "An answer is being written." if is_busy else ""
            if button_unless("Read the heads", why, key="live-heads") and act(session, request, "heads", lane=lane):
                st.rerun()
            st.caption("Shows which heads hold it. The last answer is read once more, which takes as long.")
        return
    table = heads.of_token(word)
    name = f"live-word-{word}"
    theme = page_theme()
    focus = head_in_focus(heads, word)
    source = f"{transcript.lanes[lane].label}, after {heads.turn} questions"
    left, right = st.columns(2)
    with left:
        holding = figures.heads_that_hold(table, label, theme, focus)
        caption = caption_focus(figures.caption_heads_that_hold(table), holding, focus)
        show(holding, table, caption, "live-heads-hold", name, source)
    with right:
        attention = figures.attention_to_token(table, label, theme, focus)
        caption = caption_focus(figures.caption_attention_to_token(table), attention, focus)
        show(attention, table, caption, "live-heads-attend", f"{name}-attention", source)
