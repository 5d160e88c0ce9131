"""Story mode on every page: add what is seen to a story, and, while one is told, its caption with next and previous."""

from __future__ import annotations

import streamlit as st

from app.parts.links import PAGES, page_exists
from app.parts.text import plain
from app.state import runs_root
from kvlab.errors import UserError
from kvlab.trace.stories import Story, View, list_stories, load_story, save_story

TELLING = "telling"  # (name, place) of the story being told in this session
KEPT = (TELLING, "session_id", "chosen_", "shown_", "story")
NOT_KEPT = ("job", "embed", "embed_options")


def offer(page: str) -> None:
    """In the sidebar: a form that adds the view on the screen to a story."""
    if page in ("", "start", "new_run", "story"):
        return
    with st.sidebar.popover("Add to a story", icon=":material/bookmark_add:", width="stretch", key="story-add"):
        known = list_stories(runs_root())
        name = st.text_input("Story", value=known[0] if known else "My story", key="story-name")
        caption = st.text_area("Caption", key="story-caption", placeholder="What to see here")
        if st.button("Add this view", type="primary", key="story-save"):
            _add(page, name, caption)


def _add(page: str, name: str, caption: str) -> None:
    query = {key: value for key, value in st.query_params.to_dict().items() if key not in NOT_KEPT}
    try:
        story = load_story(runs_root(), name).with_view(View(page=page, query=query, caption=caption.strip()))
        save_story(runs_root(), story)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.success(f"View {len(story.views)} of {plain(story.name)}.")


def tell(story: Story, at: int) -> None:
    """Go to one view of a story and stay in its telling."""
    at = min(max(at, 0), len(story.views) - 1)
    st.session_state[TELLING] = (story.name, at)
    view = story.views[at]
    if page_exists(view.page):
        forget_widgets()
        st.switch_page(PAGES / f"{view.page}.py", query_params=view.query)
    st.error(f"There is no page {view.page}: this story was made with another kvlab.")


def forget_widgets() -> None:
    """Widgets of the page left behind must not win over the address of the view to come."""
    for key in [key for key in st.session_state if not str(key).startswith(KEPT)]:
        del st.session_state[key]


def caption_bar(page: str) -> None:
    """On top of a view, while a story is told: its caption, next, previous and stop."""
    if TELLING not in st.session_state or page == "story":
        return
    name, at = st.session_state[TELLING]
    try:
        story = load_story(runs_root(), name)
    except UserError:
        story = Story(name=name)
    if at >= len(story.views) or story.views[at].page != page:
        st.session_state.pop(TELLING)
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="story-bar"):
        st.markdown(f"**{plain(name)}** · {at + 1} of {len(story.views)}", width="content")
        st.markdown(plain(story.views[at].caption) or "*no caption*", width="stretch")
        if st.button("Previous", disabled=at == 0, key="story-previous", icon=":material/arrow_back:"):
            tell(story, at - 1)
        if st.button("Next", disabled=at == len(story.views) - 1, key="story-next", icon=":material/arrow_forward:"):
            tell(story, at + 1)
        if st.button("Stop", key="story-stop"):
            st.session_state.pop(TELLING)
            st.rerun()
