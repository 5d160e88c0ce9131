"""Add a figure, table or text to a story as a slide; present a story as a talk, or export it."""

from collections.abc import Mapping

import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain
from app.base.theme import theme
from app.figures.provenance import slide_words, view_query
from app.session.open_runs import runs_root
from app.session.url_state import current_page
from kvlab.common.lab import acting
from kvlab.core.errors import UserError
from kvlab.report.deck import deck
from kvlab.report.views import Shown, kind_of
from kvlab.trace.stories import LARGEST_FIGURE, Kind, Slide, Story, View, list_stories, load_story, save_story
from kvlab.views.base import FigureSource, Theme

STORY = "story-name"


def slide_of(
    title: str,
    shown: go.Figure | Shown,
    caption: str,
    source: FigureSource,
    query: Mapping[str, str],
    theme_of_slide: Theme,
) -> Slide:
    """A slide of a figure, table or text with a title that stands alone, its caption, subject and source.

    `query` are the URL parameters of the view.
    """
    title, subject, notes = slide_words(title, source, query, shown)
    if isinstance(shown, go.Figure):
        content: str = str(shown.to_json())
        kind: Kind = "figure"
    else:
        content = shown.model_dump_json()
        kind = kind_of(shown)
    if len(content) > LARGEST_FIGURE:
        raise UserError("This is too large for a slide: add the view from the sidebar, or show less of it.")
    return Slide(
        title=title,
        caption=caption,
        of=subject,
        source=notes,
        kind=kind,
        figure=content,
        theme=theme_of_slide,
    )


def add_slide(title: str, shown: go.Figure | Shown, caption: str, source: FigureSource) -> None:
    """Append a slide to the story that was last added to."""
    name = st.session_state.get(STORY) or default_story()
    query = view_query()
    try:
        view = View(page=current_page(), query=query, slide=slide_of(title, shown, caption, source, query, theme()))
        story = load_story(runs_root(), name).with_view(view)
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.toast(f"Added slide {len(story.views)} to {plain(story.name)}.", icon=":material/bookmark_added:")


def default_story() -> str:
    """The user's first story, or the name of a new one."""
    user = acting().name
    return next(iter(list_stories(runs_root(), owned=True)), f"Story of {user}" if user else "My story")


@st.cache_data(max_entries=4, show_spinner="Creating the talk")
def talk_html(_story: Story, content: str) -> str:
    """The talk as HTML; `content` is the story as JSON, the cache key. Raises UserError as `deck`."""
    return deck(_story).decode()
