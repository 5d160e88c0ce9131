"""The menu: places in the order of questions, and the views of each as tabs at the top of its pages.

A view is a script in `pages/`. An address of a view that moved is in `app.navigation.moved_pages`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial

import streamlit as st

from app.base.component import component
from app.base.links import PAGES, link, page_link, run_in_url
from app.base.theme import theme
from app.navigation.moved_pages import MOVED, open_moved
from app.run_views.plugin_views import view_pages
from app.session.open_runs import runs_root
from kvlab.common.formatting import format_bytes

FIRST = "first"  # the URL path of the start page, which is served at the root
TABS = "page-tabs"


@dataclass(frozen=True)
class Entry:
    """An entry of the menu; its first view opens with it. `views` are scripts in `pages/` with the titles of tabs."""

    title: str
    icon: str
    views: tuple[tuple[str, str], ...]
    plugins: bool = False  # whether the views of plug-ins are its last tabs


MENU = (
    Entry("Home", "home", (("start", "Start"), ("runs", "All runs"))),
    Entry("New", "add_circle", (("new_run", "New"),)),
    Entry("Live", "forum", (("live", "Live"),)),
    Entry("Result", "rule", (("compare", "Result"),)),
    Entry(
        "Cache",
        "view_comfy",
        (
            ("wall", "All heads"),
            ("two_runs", "Difference of two runs"),
            ("timeline", "One head"),
            ("lineage", "One slot"),
            ("spans", "By part of the prompt"),
        ),
    ),
    Entry("Why wrong", "mystery", (("restore", "Restore the answer"), ("autopsy", "Fate of a word"))),
    Entry(
        "Attention",
        "visibility",
        (
            ("merges", "Lost by merging"),
            ("sag", "Bound of the loss"),
            ("regret", "Lost by dropping"),
            ("heads", "Heads"),
            ("similarity", "Similarity"),
        ),
        plugins=True,
    ),
    Entry("Cost", "memory", (("memory", "Bytes"), ("serving", "In a serving engine"), ("speed", "Speed"))),
    Entry("Many prompts", "grade", (("quality", "Scores"), ("safe_budget", "Safe budget"))),
    Entry("Papers", "auto_stories", (("papers", "Papers"),)),
    Entry("Story", "bookmarks", (("story", "Story"),)),
)
GLOSSARY = "glossary"
TOOLS = "top-tools"
THEMES = {"Light": "☀", "System": "◐", "Dark": "☾"}
BUTTONS = "".join(
    f'<button type="button" role="radio" data-theme="{name}" title="{name}" aria-label="{name}">{sign}</button>'
    for name, sign in THEMES.items()
)
_component = component(
    "theme-switch", f'<div class="kv-theme" role="radiogroup" aria-label="Theme">{BUTTONS}</div>', "theme-switch.css"
)


@dataclass(frozen=True)
class Menu:
    """The pages of Streamlit's navigation, and the tabs of each by its URL path: pages with their titles."""

    pages: tuple[st.Page, ...]
    tabs: dict[str, tuple[tuple[st.Page, str], ...]]


def menu() -> Menu:
    """The menu of this checkout with its plug-ins."""
    pages: list[st.Page] = []
    tabs: dict[str, tuple[tuple[st.Page, str], ...]] = {}
    for entry in MENU:
        # Only the entry is in the sidebar; its other views have addresses and tabs.
        views = [
            (_page(name, entry.title if place == 0 else title, entry.icon, hidden=place > 0), title)
            for place, (name, title) in enumerate(entry.views)
        ]
        if entry.plugins:
            views += [(page, page.title) for page in view_pages()]
        pages += [page for page, _ in views]
        tabs |= {page.url_path: tuple(views) for page, _ in views}
    # The default page is served at the root only, so a hidden one is served at /start.
    pages.append(st.Page(PAGES / "start.py", title="Home", url_path="start", visibility="hidden"))
    tabs["start"] = tabs[""]
    pages.append(_page(GLOSSARY, "Glossary", "menu_book", hidden=True))
    for name in MOVED:
        title = name.replace("_", " ").capitalize()
        pages.append(st.Page(partial(open_moved, name), title=title, url_path=name, visibility="hidden"))
    return Menu(tuple(pages), tabs)


def _page(name: str, title: str, icon: str, hidden: bool) -> st.Page:
    return st.Page(
        PAGES / f"{name}.py",
        title=title,
        icon=f":material/{icon}:",
        url_path=FIRST if name == "start" else name,
        default=name == "start",
        visibility="hidden" if hidden else "visible",
    )


def page_tabs(shown: Menu, page: st.Page) -> None:
    """The tabs of the page's entry, if it has several views; marks the entry in the sidebar."""
    views = shown.tabs.get(page.url_path, ())
    if len(views) < 2:
        return
    entry = views[0][0].url_path
    if page.url_path != entry:
        # Streamlit marks only the page itself, which the sidebar does not list.
        link = f'[data-testid="stSidebarNavLink"][href$="/{entry}"]'
        st.html(f"<style>{link} {{ background: #8884; }} {link} span {{ font-weight: 600; }}</style>")
    with st.container(key=TABS, horizontal=True, gap="small"):
        for view, title in views:
            page_link(view, title, **run_in_url())


def top_tools(shown: Menu) -> None:
    """What every page has: glossary and disk at the top right, and in the sidebar the theme, stored in the browser."""
    with st.sidebar:
        # Streamlit stores a theme for each page.
        paths = ["", *(page.url_path for page in shown.pages)]
        _component(key="theme-switch", data={"paths": paths, "drawn": theme()}, on_chosen_change=lambda: None)
    with st.container(key=TOOLS, horizontal=True, vertical_alignment="center", gap=None, width="content"):
        link(GLOSSARY, "?", help="Glossary: the terms of the pages in plain words")
        with st.popover("", icon=":material/settings:", help="The folder of runs and its disk", type="tertiary"):
            root = runs_root()
            if root.exists():
                disk = shutil.disk_usage(root)
                st.caption(f"The disk has {format_bytes(disk.free)} free of {format_bytes(disk.total)}.")
            link("runs", "Thin, export or delete runs", icon=":material/folder_open:")
