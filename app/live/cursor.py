"""Selection of a session (lane, chosen words, head), shared with the pages of its recorded comparisons."""

from __future__ import annotations

import streamlit as st

from app.base.links import link
from app.base.text import plain
from app.navigation.place import TOKEN, share_token, shared_token
from app.navigation.selection import runs_root
from app.session.url_state import (
    chosen_value,
    clear_page_param,
    params,
    parse_number,
    remember,
    set_page_param,
    set_param,
    url_number,
    url_numbers,
    url_value,
)
from kvlab.live.transcript import Transcript
from kvlab.trace.catalogue import list_runs
from kvlab.views.frames.token_heads import TokenHeads

# URL parameters; `span` is there with `token`, its last token, for more than one
LANE = "lane"
SPAN = "span"
PAGES = (("wall", "Cache wall"), ("timeline", "Cache timeline"), ("similarity", "Similarity"))
Words = tuple[int, int]  # first and last token
Head = tuple[int, int]  # layer and head


def chosen_words(transcript: Transcript) -> Words | None:
    """The chosen tokens of the context, else the one chosen on another page; None if none are."""
    token = url_number(TOKEN)
    if token is None and (token := shared_token(transcript.recorded)) is not None:
        set_param(TOKEN, str(token))
    if token is None or token >= len(transcript.texts):
        return None
    span = url_numbers(SPAN, 2)
    return (span[0], token) if span and span[0] <= span[1] == token else (token, token)


def choose_words(transcript: Transcript, first: int, last: int) -> None:
    """Put the chosen tokens into the URL, and let pages of the recorded comparison show the last; for a callback."""
    set_page_param(TOKEN, last)
    if first == last:
        clear_page_param(SPAN)
    else:
        set_page_param(SPAN, f"{first}-{last}")
    if transcript.recorded:
        share_token(transcript.recorded[-1], last)


def head_in_focus(heads: TokenHeads | None, token: int | None) -> Head | None:
    """The layer and head chosen here or on another page, else the head of `heads` that reads the token most."""
    layer, head = (parse_number(url_value(name) or chosen_value(name)) for name in ("layer", "head"))
    if layer is not None and head is not None and (heads is None or heads.has(layer, head)):
        return layer, head
    return None if heads is None or token is None else heads.most_attentive(token)


def follow_run(transcript: Transcript) -> None:
    """Begin with the lane whose run was chosen on another page; call before the lane's widget is drawn."""
    chosen = chosen_value("run")
    lane = next((lane for lane, run in transcript.runs.items() if run == chosen), None)
    if lane is not None and LANE not in params() and LANE not in st.session_state:
        st.session_state[LANE] = str(lane)


def share_lane(transcript: Transcript) -> None:
    """Callback: let other pages show the run of the chosen lane."""
    if run := transcript.runs.get(int(st.session_state[LANE])):
        remember("run", run, url=False)


def place_of(words: Words | None, head: Head | None) -> dict[str, str]:
    """The parameters by which other pages show the last chosen token and the head."""
    place = {} if head is None else {"layer": str(head[0]), "head": str(head[1])}
    return place if words is None else {TOKEN: str(words[1]), **place}


def recorded_links(transcript: Transcript, lane: int, words: Words | None, head: Head | None) -> None:
    """Links to the recorded run of a lane on other pages, with the chosen token and head; nothing without a run."""
    run = transcript.runs.get(lane)
    if run is None:
        return
    comparison = transcript.recorded[-1]
    if not any(entry.run_id == run for entry in list_runs(runs_root(), comparison_id=comparison)):
        link("compare", "The comparison is being recorded", job=comparison, run=run, **place_of(words, head))
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live-recorded"):
        st.markdown(f"**{plain(transcript.lanes[lane].label)}**, as recorded:", width="content")
        for name, label in PAGES:
            link(name, label, run=run, **place_of(words, head))
        link("compare", "Compare", comparison=comparison)
