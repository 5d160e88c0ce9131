"""Story mode: add views to a story on every page, and show captions with next and previous.

Telling is kept in the URL alone (`telling` is the story, `place` the view). Each view opens as from a link, so it keeps
no state of the one before, and its URL can be shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import streamlit as st

from app.base.component import component
from app.base.links import go, page_exists
from app.base.text import code, plain
from app.base.widgets import button_unless
from app.figures.add_slide import MOST_SLIDES, default_story, slides_of_view
from app.figures.provenance import PLACE, TELLING, Item, telling_items, view_query
from app.navigation.moved_pages import current_place
from app.navigation.selection import runs_root
from app.session.url_state import get_param, parse_number
from kvlab.core.errors import UserError
from kvlab.report.deck import slide_text
from kvlab.trace.stories import Story, View, load_story, save_story
from kvlab.views.base.caption import both_of

HTML = """
<nav class="kv-story" aria-label="Story">
  <div class="where"></div><div class="caption"></div>
  <a data-part="previous">← Previous</a><a data-part="next">Next →</a><a data-part="stop">Stop</a>
</nav>
"""

_component = component("story", HTML, "story.css")


def offer(page: str) -> None:
    """A form in the sidebar that adds the current view to a story."""
    if page in ("", "start", "new_run", "story"):
        return
    with st.sidebar.popover("Add to a story", icon=":material/bookmark_add:", width="stretch", key="story-add"):
        name = st.text_input("Story", value=default_story(), key="story-name")
        caption = st.text_area("Caption", key="story-caption", placeholder="What this view shows")
        items = telling_items()
        st.caption(plain(_slide_note(items)))
        empty = "" if items else "The slide would be empty."
        if button_unless("Add this view", empty, type="primary", key="story-save"):
            _add(page, name, caption, items)


def _slide_note(items: Sequence[Item]) -> str:
    """A line on what the slides of the view will show; parts of a page that are drawn later are not known yet."""
    if not items:
        return "This page shows no figure, table or text, so there is nothing to put on a slide."
    return (
        f"Slides show the first figures of this page, at most {MOST_SLIDES}, beginning with “{items[0].title}”. "
        "Every figure can be added from its own menu."
    )


def _add(page: str, name: str, caption: str, items: Sequence[Item]) -> None:
    try:
        slides = slides_of_view(items)
        story = load_story(runs_root(), name)
        for place, slide in enumerate(slides):
            words = "" if place else caption.strip()
            story = story.with_view(View(page=page, query=view_query(), caption=words, slide=slide))
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    last = len(story.views)
    where = f"view {last}" if len(slides) == 1 else f"views {last - len(slides) + 1} to {last}"
    st.success(f"Added as {where} of {plain(story.name)}.")


def tell(story: Story, at: int) -> None:
    """Go to a view of a story, with its caption at the top."""
    view = story.views[at]
    page, query = current_place(view.page, _query(story, at))
    if page_exists(page):
        go(page, **query)
    st.error(f"There is no page {code(view.page)}: this story was created with another version of kvlab.")


def _query(story: Story, at: int) -> dict[str, str]:
    return story.views[at].query | {TELLING: story.name, PLACE: str(at + 1)}


def _address(story: Story, at: int) -> str | None:
    """The URL of a view of a story, relative to the pages; None beyond its ends."""
    if not 0 <= at < len(story.views):
        return None
    return f"{story.views[at].page}?{urlencode(_query(story, at))}"


def caption_bar(page: str) -> None:
    """The caption at the top of a view in story mode, with next, previous and stop."""
    name = get_param(TELLING)
    place = get_param(PLACE) or ""
    if name is None or page == "story":
        return
    try:
        story = load_story(runs_root(), name)
    except UserError as error:
        st.warning(plain(str(error)))
        return
    at = (parse_number(place) or 0) - 1
    if not 0 <= at < len(story.views):
        rest = f"choose one of 1 to {len(story.views)}" if story.views else "it is empty or does not exist here"
        st.warning(f"The story {plain(name)} has no view {code(place)}: {rest}.")
        return
    data = {
        "where": f"{story.name} · {at + 1} of {len(story.views)}",
        "caption": both_of(slide_text(story.views[at])),
        "previous": _address(story, at - 1),
        "next": _address(story, at + 1),
        "drop": [TELLING, PLACE],
    }
    _component(key="story-bar", data=data)
