"""The text of the context, each token shaded by the share of layers and heads that still hold it."""

from __future__ import annotations

import numpy as np
import streamlit as st

from app.base.text import plain, shorten
from app.base.widgets import one_of
from app.components.payload import SentTexts
from app.components.tokentext import tokentext
from app.live.word_heads import TEXT, chosen_word, remember_word, word_heads
from kvlab.figures.base.palette import SEQUENTIAL, STATE_COLOURS
from kvlab.live.transcript import LaneState, Transcript
from kvlab.report.views import Cue, TokenClass
from kvlab.requests.live_session import LiveRequest

SHARES = (0.1, 0.3, 0.6, 0.999)  # upper ends of the classes of held shares; the last class is all heads
NAMES = (
    "in no slot", "merged into others' slots only", "a slot of its own in up to 10 % of heads", "in up to 30 %",
    "in up to 60 %", "in most heads", "in all heads",
)  # fmt: skip
CUES: tuple[Cue, ...] = ("strike", "dashed", "faint", "fill", "fill", "fill", "fill")
MOST_NOTES = 8192  # tokens of a text whose tokens say what they were merged into


def what_is_left(session: str, request: LiveRequest, transcript: Transcript, is_busy: bool) -> None:
    """The context, each token shaded by the share of all layers and heads that hold it in a slot of its own."""
    known = {number: lane for number, lane in sorted(transcript.lanes.items()) if number and lane.held is not None}
    if not known or not transcript.texts:
        return
    st.header("What is left of the text")
    labels = {str(number): lane.label for number, lane in known.items()}
    number = int(one_of("Lane", labels, key="lane"))
    chosen, word = known[number], chosen_word(transcript)
    tokentext(
        SentTexts(transcript.texts), codes_of(chosen), held_classes(), identity=f"{session}/{chosen.label}",
        key=TEXT, notes=merge_notes(chosen, transcript.texts),
        chosen=None if word is None else (word, word), on_chosen=remember_word,
        title=f"{chosen.label}: share of layers and heads that hold each token", has_menu=not is_busy,
    )  # fmt: skip
    st.caption(plain(what_is_left_sentence(chosen)))
    word_heads(session, request, transcript, number, is_busy)


def codes_of(lane: LaneState) -> np.ndarray:
    """(context tokens,) uint8: the class of `NAMES` of each token."""
    held, merged = lane.held, lane.merged
    assert held is not None
    classes = np.searchsorted(SHARES, held - 1e-6, side="left") + 2
    alive = np.zeros_like(held, bool) if merged is None else merged > 0
    return np.where(held > 0, classes, alive).astype(np.uint8)


def merge_notes(lane: LaneState, texts: list[str]) -> list[str]:
    """Per token what most heads that merged it merged it into; empty if nothing was merged."""
    if lane.into is None or lane.merged is None or len(texts) > MOST_NOTES:
        return []
    notes = []
    for share, owner in zip(lane.merged, lane.into, strict=True):
        into = f"mostly into {owner} “{shorten(texts[owner].strip())}”"
        notes.append(f"merged in {100 * share:.0f} % of heads, {into}" if share > 0 else "")
    return notes


def what_is_left_sentence(lane: LaneState) -> str:
    """How much of the text has no slot, and how much a head holds on average."""
    codes = codes_of(lane)
    assert lane.held is not None
    gone, merged = (100 * float((codes == code).mean()) for code in (0, 1))
    others = f", {merged:.0f} % are only in slots that they were merged into" if lane.merged is not None else ""
    return f"{gone:.0f} % of the tokens are in no slot{others}; a head holds {100 * lane.held.mean():.0f} % on average."


def held_classes() -> tuple[TokenClass, ...]:
    """Looks of the classes of `NAMES`, from dropped everywhere to held everywhere."""
    light, dark = (SEQUENTIAL[theme] for theme in ("light", "dark"))
    colours = [STATE_COLOURS["evicted"], STATE_COLOURS["absorbed"], *zip(light[1:], dark[1:], strict=True)]
    return tuple(
        TokenClass(name=name, colour=colour, cue=cue) for name, colour, cue in zip(NAMES, colours, CUES, strict=True)
    )
