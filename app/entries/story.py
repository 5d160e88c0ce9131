"""Story: saved views with captions, to present or export as a talk, and to walk through on their pages.

Telling is kept in the URL alone (`telling` is the story, `place` the view). Each view opens as from a link, so it keeps
no state of the one before, and its URL can be shared.
"""

from functools import partial
from urllib.parse import urlencode

import streamlit as st

from app.base.component import component
from app.base.links import go
from app.base.text import code, plain, slug, unseen
from app.base.widgets import attempt, button_unless, why_not_change, widget_options
from app.components import present_button
from app.figures.add_slide import default_story, talk_html
from app.figures.export_menu import ITEMS, MOST_SLIDES, Offer, explain_formats, file_button, slides_of_view
from app.figures.image_writer import image_writer
from app.figures.provenance import PLACE, TELLING, view_query
from app.navigation import page
from app.navigation.menu import current_place, page_names
from app.navigation.selection import runs_root
from app.session.url_state import get_param, in_url, parse_number
from kvlab.core.errors import UserError
from kvlab.report.deck import slide_text, view_thumbnail
from kvlab.report.export import FORMATS, export_talk
from kvlab.report.page import story_html
from kvlab.trace import stories

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
        # The items with a picture, or without one all of them: what slides of the whole view are made of.
        every: list[Offer] = list(st.session_state.get(ITEMS, {}).values())
        items = [item for item in every if item.has_picture] or every
        # What the slides of the view will show; parts of a page that are drawn later are not known yet.
        note = "This page shows no figure, table or text, so there is nothing to put on a slide."
        if items:
            note = (
                f"Slides show the first figures of this page, at most {MOST_SLIDES}, beginning with "
                f"“{items[0].title}”. Every figure can be added from its own menu."
            )
        st.caption(plain(note))
        empty = "" if items else "The slide would be empty."
        if button_unless("Add this view", empty, type="primary", key="story-save"):
            try:
                slides = slides_of_view(items)
                story = stories.load_story(runs_root(), name)
                for place, slide in enumerate(slides):
                    words = "" if place else caption.strip()
                    story = story.with_view(stories.View(page=page, query=view_query(), caption=words, slide=slide))
                stories.save_story(runs_root(), story)
            except UserError as error:
                st.error(plain(str(error)))
                return
            last = len(story.views)
            where = f"view {last}" if len(slides) == 1 else f"views {last - len(slides) + 1} to {last}"
            st.success(f"Added as {where} of {plain(story.name)}.")


def tell(story: stories.Story, at: int) -> None:
    """Go to a view of a story, with its caption at the top."""
    view = story.views[at]
    page, query = current_place(view.page, _query(story, at))
    if page in page_names():
        go(page, **query)
    st.error(f"There is no page {code(view.page)}: this story was created with another version of kvlab.")


def _query(story: stories.Story, at: int) -> dict[str, str]:
    return story.views[at].query | {TELLING: story.name, PLACE: str(at + 1)}


def _address(story: stories.Story, at: int) -> str | None:
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
        story = stories.load_story(runs_root(), name)
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
        "caption": slide_text(story.views[at]),
        "previous": _address(story, at - 1),
        "next": _address(story, at + 1),
        "drop": [TELLING, PLACE],
    }
    _component(key="story-bar", data=data)


def story_page() -> None:
    page.heading(
        "Story",
        "Create a talk in a few minutes: add figures, tables or texts from their menus, or a whole view from the "
        "sidebar, as slides; then reorder, present and export them. Keys while presenting: arrows to move, F for full "
        "screen, N for a slide's source.",
    )
    with st.popover("Import", icon=":material/upload:", key="story-import"):
        file = st.file_uploader("A story exported as JSON", type=["json"], key="story-file")
        if file is not None and st.button("Import", key="story-take"):
            try:
                imported = stories.parse_story(file.getvalue())
                story = stories.import_story(runs_root(), imported)
            except UserError as error:
                st.error(plain(str(error)))
            else:
                both = "" if story.name == imported.name else f" {plain(imported.name)} exists already; both are kept."
                st.success(f"{plain(story.name)}: {len(story.views)} views.{both}")
    names = stories.list_stories(runs_root())
    if not names:
        st.info("There is no story yet: open a page about a run, and click **Add to a story** in the sidebar.")
        return
    name = st.selectbox("Story", names, **in_url("story"))
    story = stories.load_story(runs_root(), name)
    if not story.views:
        st.caption("This story has no views.")
        return
    labels = stories.labels_of_story(runs_root(), name)
    why = why_not_change([labels.owner])
    actions(story)
    if labels.owner:
        # The story's owner, and the switch that makes it private.
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"Created by **{plain(labels.owner)}**.", width="content")
            help_text = "Only you can see it."
            if st.toggle(
                "Private", labels.private, **widget_options(why, key=f"story-private-{name}", help=help_text)
            ) != labels.private and attempt(lambda: stories.make_private(runs_root(), name, not labels.private)):
                st.rerun()
    for at in range(len(story.views)):
        view_row(story, at, why)


def actions(story: stories.Story) -> None:
    with st.container(horizontal=True):
        try:
            present_button(talk_html(story, story.model_dump_json()), key="story-present")
        except UserError as error:
            st.error(plain(str(error)))
        if st.button("Walk through the pages", icon=":material/slideshow:", key="story-tell"):
            tell(story, 0)
        for kind, media in FORMATS.items():
            name = f"{slug(story.name)}.{kind}"
            make = partial(export_talk, story, kind, image_writer())
            file_button(f"Talk ({kind.upper()})", kind, make, name, media, "story-talk")
        st.download_button(
            "JSON", story.model_dump_json(indent=2), f"{slug(story.name)}.json", key="story-json", on_click="ignore"
        )
        # The dashboard's URL, for links in the exported story.
        base = (st.context.url or "").split("?")[0].removesuffix("/").removesuffix("/story")
        st.download_button(
            "Links", story_html(story, base), f"{slug(story.name)}-links.html", key="story-html", on_click="ignore"
        )
    explain_formats()


picture_of = st.cache_data(
    max_entries=200, show_spinner=False, hash_funcs={stories.View: stories.View.model_dump_json}
)(view_thumbnail)


def view_row(story: stories.Story, at: int, why: str) -> None:
    view = story.views[at]
    with st.container(border=True, key=f"story-view-{at}"):
        left, texts, buttons = st.columns([2, 5, 2], vertical_alignment="center")
        with left:
            st.image(picture_of(view), width="stretch", alt=f"Picture of view {at + 1}: {view.title}")
            st.markdown(f"**{at + 1}**" if view.slide else f"**{at + 1} · {plain(view.title)}**  \n:small[a page]")
            if not view.slide:
                st.caption("This view has no slide: open it, and add its figures.")
            subject = view.slide.of if view.slide else ", ".join(f"{key} {value}" for key, value in view.query.items())
            st.caption(plain(subject))
        with texts:
            if view.slide:
                title = st.text_input(
                    "Title", view.slide.title, key=f"title-{story.name}-{at}-{view.slide.title}", disabled=bool(why)
                )
                if title.strip() and title != view.slide.title:
                    change(story.reworded(at, title=title.strip()))
            caption = st.text_area(
                "Caption",
                view.caption,
                key=f"caption-{story.name}-{at}-{view.caption}",
                height=80,
                placeholder=slide_text(view) if view.slide else "",
                disabled=bool(why),
            )
            if caption != view.caption:
                change(story.reworded(at, caption=caption))
        with buttons, st.container(horizontal=True):
            last = at == len(story.views) - 1
            for name, words, icon, off, changed in (
                ("up", "Move up", "arrow_upward", at == 0, lambda: story.moved(at, -1)),
                ("down", "Move down", "arrow_downward", last, lambda: story.moved(at, 1)),
                ("twice", "Duplicate", "content_copy", False, lambda: story.duplicated(at)),
                ("delete", "Remove", "delete", False, lambda: story.without(at)),
            ):
                label = unseen(f"{words}: view {at + 1}")
                looks = {"icon": f":material/{icon}:", "help": words}
                if button_unless(label, why, key=f"{name}-{at}", disabled=off, **looks):
                    change(changed())
            if st.button(f"Open {unseen(f'view {at + 1}')}", key=f"open-{at}"):
                tell(story, at)


def change(story: stories.Story) -> None:
    if attempt(lambda: stories.save_story(runs_root(), story)):
        st.rerun()
