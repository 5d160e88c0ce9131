"""The text of the context, each token shaded by the share of layers and heads that still hold it."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.text import plain
from app.base.widgets import one_of
from app.components.payload import SentTexts
from app.components.tokentext import tokentext
from app.live.cursor import (
    LANE,
    choose_words,
    chosen_words,
    follow_run,
    head_in_focus,
    recorded_links,
    share_lane,
)  # fmt: skip
from app.live.word_heads import known_heads, word_heads
from kvlab.live.transcript import NAMES, Transcript, codes_of, merge_notes, what_is_left_sentence
from kvlab.report.views import Cue, TokenClass
from kvlab.requests.live_session import LiveRequest
from kvlab.views.base.palette import SEQUENTIAL, STATE_COLOURS

SENT = "live-sent-texts"
TEXT = "live-canvas"  # key of the text in which words are chosen
CUES: tuple[Cue, ...] = ("strike", "dashed", "faint", "fill", "fill", "fill", "fill")


def what_is_left(session: str, request: LiveRequest, transcript: Transcript, is_busy: bool) -> None:
    """The context, each token shaded by the share of all layers and heads that hold it in a slot of its own."""
    numbers = [number for number in sorted(transcript.lanes) if number or not request.has_full_cache]
    known = {number: lane for number in numbers if (lane := transcript.lanes[number]).held is not None}
    if not known or not transcript.texts:
        return
    st.header("What is left of the text")
    labels = {str(number): lane.label for number, lane in known.items()}
    follow_run(transcript)
    number = int(one_of("Lane", labels, key=LANE, on_change=partial(share_lane, transcript)))
    chosen = known[number]
    words = chosen_words(transcript)
    tokentext(
        _sent(transcript.texts),
        codes_of(chosen),
        held_classes(),
        identity=f"{session}/{chosen.label}",
        key=TEXT,
        notes=merge_notes(chosen, transcript.texts),
        chosen=words,
        on_chosen=partial(remember_words, transcript),
        title=f"{chosen.label}: share of layers and heads that hold each token",
        has_menu=not is_busy,
    )
    unknown = " What was merged when the prefix was made is not in its file." if request.prefixes else ""
    st.caption(plain(what_is_left_sentence(chosen) + unknown))
    heads = known_heads(session, transcript, number)
    word_heads(session, request, transcript, number, heads, is_busy)
    if not is_busy:
        recorded_links(transcript, number, words, head_in_focus(heads, words and words[1]))


def _sent(texts: list[str]) -> SentTexts:
    """The texts as sent to the browser, which are hashed once for a session."""
    known: tuple[list[str], SentTexts] | None = st.session_state.get(SENT)
    if known is None or known[0] is not texts:
        known = st.session_state[SENT] = texts, SentTexts(texts)
    return known[1]


def remember_words(transcript: Transcript) -> None:
    """Callback: choose the words that were clicked."""
    if (chosen := st.session_state[TEXT].get("chosen")) is not None:
        choose_words(transcript, int(chosen[0]), int(chosen[1]))


def held_classes() -> tuple[TokenClass, ...]:
    """Looks of the classes of `NAMES`, from dropped everywhere to held everywhere."""
    light, dark = (SEQUENTIAL[theme] for theme in ("light", "dark"))
    colours = [STATE_COLOURS["evicted"], STATE_COLOURS["absorbed"], *zip(light[1:], dark[1:], strict=True)]
    return tuple(
        TokenClass(name=name, colour=colour, cue=cue) for name, colour, cue in zip(NAMES, colours, CUES, strict=True)
    )
