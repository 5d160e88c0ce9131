"""Story mode on every page: add what is seen to a story, and, while one is told, its caption with next and previous.

A story is told by the address alone (`telling` its name, `place` the view): each view is opened as its link is opened
in a new tab, so nothing of the view before can stay in it, and any view of a telling can be sent to somebody.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import streamlit as st

from app.base import permission
from app.base.links import PAGES, page_exists
from app.base.text import code, plain
from app.figures.add_slide import slide_of_view, usual_story
from app.figures.shown_on_page import Seen, all_seen
from app.navigation.selection import runs_root
from app.session.url_numbers import number_of
from kvlab.browser import read_static
from kvlab.common.errors import UserError
from kvlab.trace.stories import Story, View, load_story, save_story

TELLING, PLACE = "telling", "place"
NOT_KEPT = ("job", "embed", "embed_options", TELLING, PLACE)
HTML = """
<nav class="kv-story" aria-label="Story">
  <div class="where"></div><div class="caption"></div>
  <a data-part="previous">← Previous</a><a data-part="next">Next →</a><a data-part="stop">Stop</a>
</nav>
"""

_component = st.components.v2.component(
    "kvlab_story",
    html=HTML,
    css=read_static("story.css"),
    js=read_static("story.js"),
)


def offer(page: str) -> None:
    """In the sidebar: a form that adds the view on the screen to a story."""
    if page in ("", "start", "new_run", "story"):
        return
    with st.sidebar.popover("Add to a story", icon=":material/bookmark_add:", width="stretch", key="story-add"):
        name = st.text_input("Story", value=usual_story(), key="story-name")
        caption = st.text_area("Caption", key="story-caption", placeholder="What to see here")
        seen = all_seen()
        st.caption(plain(_shows(seen)))
        empty = "" if seen else "The slide would be empty."
        if permission.button("Add this view", permission.why_not() or empty, type="primary", key="story-save"):
            _add(page, name, caption, seen)


def _shows(seen: Sequence[Seen]) -> str:
    """What the slide of a whole view shows, before it is added."""
    if not seen:
        return "This page shows no figure, table or text now, so there is nothing to put on a slide."
    more = len(seen) - 1
    rest = f" The {more} others on this page are added from the menu beside each." if more > 1 else ""
    rest = " The other one on this page is added from the menu beside it." if more == 1 else rest
    return f"Its slide shows “{seen[0].title}”.{rest}"


def _add(page: str, name: str, caption: str, seen: Sequence[Seen]) -> None:
    query = {key: value for key, value in st.query_params.to_dict().items() if key not in NOT_KEPT}
    try:
        view = View(page=page, query=query, caption=caption.strip())
        view = view.model_copy(update={"slide": slide_of_view(view.title, seen)})
        story = load_story(runs_root(), name).with_view(view)
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.success(f"View {len(story.views)} of {plain(story.name)}.")


def tell(story: Story, at: int) -> None:
    """From the story page: go to one view of a story, with its captions on top."""
    view = story.views[at]
    if page_exists(view.page):
        st.switch_page(PAGES / f"{view.page}.py", query_params=_query(story, at))
    st.error(f"There is no page {code(view.page)}: this story was made with another kvlab.")


def _query(story: Story, at: int) -> dict[str, str]:
    return story.views[at].query | {TELLING: story.name, PLACE: str(at + 1)}


def _address(story: Story, at: int) -> str | None:
    """Where a view of a story is told, relative to the pages' folder; None beyond its ends."""
    if not 0 <= at < len(story.views):
        return None
    return f"{story.views[at].page}?{urlencode(_query(story, at))}"


def caption_bar(page: str) -> None:
    """On top of a view, while a story is told: its caption, next, previous and stop."""
    name, place = st.query_params.get(TELLING), st.query_params.get(PLACE, "")
    if name is None or page == "story":
        return
    try:
        story = load_story(runs_root(), name)
    except UserError as error:
        st.warning(plain(str(error)))
        return
    at = (number_of(place) or 0) - 1
    if not 0 <= at < len(story.views):
        rest = f"choose one of 1 to {len(story.views)}" if story.views else "it is empty or was never saved here"
        st.warning(f"The story {plain(name)} has no view {code(place)}: {rest}.")
        return
    data = {
        "where": f"{story.name} · {at + 1} of {len(story.views)}",
        "caption": story.views[at].caption,
        "previous": _address(story, at - 1),
        "next": _address(story, at + 1),
        "drop": [TELLING, PLACE],
    }
    _component(key="story-bar", data=data)
