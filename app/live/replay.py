"""The session as a page that plays its steps."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.text import plain, shorten
from app.base.theme import theme
from app.components.present import present_button
from app.figures.image_writer import browser
from app.navigation.selection import runs_root
from kvlab.common.formatting import format_bytes
from kvlab.common.model_title import model_title
from kvlab.live.log import read_events
from kvlab.report.live_replay import KEYS, live_gif, replay
from kvlab.requests.live_session import LiveRequest


def replay_section(session: str, request: LiveRequest) -> None:
    """The session as a page that plays its steps: in a new tab, or as a file."""
    events, _ = read_events(runs_root(), session)
    title = f"{model_title(request.model)}: {shorten(request.context.strip())}"
    page = replay(events, title, theme())
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        present_button(page, key="live-present")
        st.download_button("HTML", page, f"live-{session}.html", key="live-html", on_click="ignore")
        st.download_button(
            "GIF",
            partial(live_gif, events, title, theme()),
            f"live-{session}.gif",
            key="live-gif",
            on_click="ignore",
            disabled=browser() is None,
            help="Pictures of the steps, which take up to a minute",
        )
        st.caption(plain(f"{format_bytes(len(page.encode()))}; it plays without a server or network. {KEYS}."))
