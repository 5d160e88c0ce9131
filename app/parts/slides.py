"""A figure becomes a slide of a story; a story becomes a talk: presented, or taken away as a file."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from app.opened import runs_root
from app.parts.text import plain
from kvlab.errors import UserError
from kvlab.report.deck import deck
from kvlab.report.written import talk
from kvlab.trace.stories import LARGEST_FIGURE, Slide, Story, View, list_stories, load_story, save_story

STATIC = Path(__file__).parent / "static"
STORY, NEW = "story-name", "My story"
PAGE = "page_in_view"
NOT_KEPT = ("job", "embed", "embed_options", "telling", "place")

_present = st.components.v2.component(
    "kvlab_present",
    html='<button class="kv-present" type="button">Present</button>',
    css=(STATIC / "present.css").read_text(encoding="utf-8"),
    js=(STATIC / "present.js").read_text(encoding="utf-8"),
)


def add_slide(figure: go.Figure, reading: str, source: str) -> None:
    """Put the figure at the end of the story that was added to last."""
    drawn = str(figure.to_json())
    name = st.session_state.get(STORY) or next(iter(list_stories(runs_root())), NEW)
    if len(drawn) > LARGEST_FIGURE:
        st.error("This figure is too large for a slide: add the view from the sidebar, or narrow what is shown.")
        return
    title = str(figure.layout.title.text or "Figure")
    query = {key: value for key, value in st.query_params.to_dict().items() if key not in NOT_KEPT}
    slide = Slide(title=title, reading=reading, source=source, figure=drawn)
    try:
        story = load_story(runs_root(), name).with_view(View(page=_page(), query=query, slide=slide))
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.toast(f"Slide {len(story.views)} of {plain(story.name)}.", icon=":material/bookmark_added:")


def present_button(story: Story, made: str) -> None:
    """Opens the talk (HTML) in a tab of its own, from where keys lead through it."""
    _present(key="story-present", data={"html": made, "name": story.name})


@st.cache_data(max_entries=4, show_spinner="Making the talk")
def made_talk(_story: Story, written: str) -> str:
    """The talk as HTML; `written` is the story as JSON, by which it is kept. Raises UserError as `deck`."""
    return deck(_story).decode()


def made_file(story: Story, kind: str) -> bytes:
    """The talk as a file of `kvlab.report.written.FORMATS`."""
    from app.parts.figure import image_writer  # that part has the button which makes slides

    return talk(story, kind, image_writer())


def _page() -> str:
    return str(st.session_state.get(PAGE, ""))
