"""A figure, a table or a text becomes a slide of a story; a story a talk: presented, or taken away as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain
from app.base.theme import theme
from app.figures.provenance import address, of_and_source
from app.figures.shown_on_page import Seen
from app.session.open_runs import runs_root
from app.session.url_state import page_in_view
from kvlab.browser import read_static
from kvlab.common.errors import UserError
from kvlab.figures.base.palette import Theme
from kvlab.report.deck import deck
from kvlab.report.export import export_talk
from kvlab.report.views import Shown, kind_of
from kvlab.server.users import acting
from kvlab.trace.stories import LARGEST_FIGURE, Kind, Slide, Story, View, list_stories, load_story, save_story

STORY = "story-name"

_present = st.components.v2.component(
    "kvlab_present",
    html='<button class="kv-present" type="button">Present</button>',
    css=read_static("present.css"),
    js=read_static("present.js"),
)


def slide_of(
    title: str, shown: go.Figure | Shown, reading: str, source: str, asked: Mapping[str, str], ground: Theme
) -> Slide:
    """What is seen, at the address `asked`, as a slide, with what it is of and where it came from."""
    of, notes = of_and_source(source, asked, shown)
    if isinstance(shown, go.Figure):
        drawn: str = str(shown.to_json())
        kind: Kind = "figure"
    else:
        drawn, kind = shown.model_dump_json(), kind_of(shown)
    if len(drawn) > LARGEST_FIGURE:
        raise UserError("This is too large for a slide: add the view from the sidebar, or narrow what is shown.")
    return Slide(title=title, reading=reading, of=of, source=notes, kind=kind, figure=drawn, theme=ground)


def add_slide(title: str, shown: go.Figure | Shown, reading: str, source: str) -> None:
    """Put what is seen at the end of the story that was added to last."""
    name = st.session_state.get(STORY) or usual_story()
    try:
        view = View(
            page=page_in_view(), query=address(), slide=slide_of(title, shown, reading, source, address(), theme())
        )
        story = load_story(runs_root(), name).with_view(view)
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.toast(f"Slide {len(story.views)} of {plain(story.name)}.", icon=":material/bookmark_added:")


def slide_of_view(page_title: str, seen: Sequence[Seen]) -> Slide:
    """The first of what a page shows that fits on a slide, for the whole view.

    Raises:
        UserError: nothing does.
    """
    reason = ""
    for one in seen:
        try:
            title = f"{page_title}: {one.title}"
            return slide_of(title, one.make(), one.reading, one.source, address(), theme())
        except UserError as error:
            reason = reason or f" ({error})"
    raise UserError(f"Nothing on this page can stand on a slide, which would be empty{reason}.")


def usual_story() -> str:
    """The story that is added to where nobody named one: the first of one's own, or a new one."""
    person = acting().name
    return next(iter(list_stories(runs_root(), own=True)), f"Story of {person}" if person else "My story")


def present_button(story: Story, made: str) -> None:
    """Opens the talk (HTML) in a tab of its own, from where keys lead through it."""
    _present(key="story-present", data={"html": made, "name": story.name})


@st.cache_data(max_entries=4, show_spinner="Making the talk")
def made_talk(_story: Story, written: str) -> str:
    """The talk as HTML; `written` is the story as JSON, by which it is kept. Raises UserError as `deck`."""
    return deck(_story).decode()


def made_file(story: Story, kind: str) -> bytes:
    """The talk as a file of `kvlab.report.export.FORMATS`."""
    from app.figures.image_writer import image_writer  # that part has the button which makes slides

    return export_talk(story, kind, image_writer())
