"""The menu: places in the order of questions, the views of each as tabs at the top of its pages, and former addresses.

A module of `app.entries` has the pages of an entry: the one at the address `wall` is drawn by its function `wall_page`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

import streamlit as st

from app.base.component import component
from app.base.links import RUN, START, from_url, go, link, page_at
from app.base.theme import theme
from app.session.open_runs import runs_root
from app.session.url_state import params
from kvlab.common.formatting import format_bytes
from kvlab.core.plugins.origin import KVLAB
from kvlab.views.base.view import VIEWS

TABS = "page-tabs"


@dataclass(frozen=True)
class Entry:
    """An entry of the menu; its first view opens with it. `views` are addresses with the titles of tabs."""

    title: str
    icon: str
    module: str
    views: tuple[tuple[str, str], ...]
    plugins: bool = False  # whether the views of plug-ins are its last tabs


MENU = (
    Entry("Home", "home", "home", (("start", "Start"), ("runs", "All runs"))),
    Entry("New", "add_circle", "new_run", (("new_run", "New"),)),
    Entry("Live", "forum", "live", (("live", "Live"),)),
    Entry("Result", "rule", "result", (("compare", "Result"),)),
    Entry(
        "Cache",
        "view_comfy",
        "cache",
        (
            ("wall", "All heads"),
            ("two_runs", "Difference of two runs"),
            ("timeline", "One head"),
            ("lineage", "One slot"),
            ("spans", "By part of the prompt"),
        ),
    ),
    Entry("Why wrong", "mystery", "why_wrong", (("restore", "Restore the answer"), ("autopsy", "Fate of a word"))),
    Entry(
        "Attention",
        "visibility",
        "attention",
        (
            ("merges", "Lost by merging"),
            ("sag", "Bound of the loss"),
            ("regret", "Lost by dropping"),
            ("heads", "Heads"),
            ("similarity", "Similarity"),
        ),
        plugins=True,
    ),
    Entry("Cost", "memory", "cost", (("memory", "Bytes"), ("serving", "In a serving engine"), ("speed", "Speed"))),
    Entry("Many prompts", "grade", "many_prompts", (("quality", "Scores"), ("safe_budget", "Safe budget"))),
    Entry("Papers", "auto_stories", "papers", (("papers", "Papers"),)),
    Entry("Story", "bookmarks", "story", (("story", "Story"),)),
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
            (_page(entry.module, name, entry.title if place == 0 else title, entry.icon, hidden=place > 0), title)
            for place, (name, title) in enumerate(entry.views)
        ]
        for found in VIEWS.values() if entry.plugins else ():
            if found.kind != "rows" and VIEWS.origin(found.name) != KVLAB:
                draw = partial(_draw, entry.module, "plugin_view", found.name)
                page = page_at(f"view_{found.name}", draw, title=found.title, icon=":material/extension:")
                views.append((page, found.title))
        pages += [page for page, _ in views]
        tabs |= {page.url_path: tuple(views) for page, _ in views}
    # The default page is served at the root only, so a hidden one is served at /start.
    pages.append(st.Page(partial(_draw, MENU[0].module, START), title="Home", url_path=START, visibility="hidden"))
    tabs[START] = tabs[""]
    pages.append(_page(GLOSSARY, GLOSSARY, "Glossary", "menu_book", hidden=True))
    for name in MOVED:
        pages.append(
            page_at(name, partial(open_moved, name), title=name.replace("_", " ").capitalize(), visibility="hidden")
        )
    return Menu(tuple(pages), tabs)


def page_names() -> list[str]:
    """The name of every page, as addresses have it."""
    return [*(name for entry in MENU for name, _ in entry.views), GLOSSARY]


def _page(module: str, name: str, title: str, icon: str, hidden: bool) -> st.Page:
    visibility = "hidden" if hidden else "visible"
    draw = partial(_draw, module, name)
    return page_at(name, draw, title=title, icon=f":material/{icon}:", visibility=visibility)


def _draw(module: str, name: str, *arguments: str) -> None:
    """Draw a page. Its module is imported now: pages link to each other by the names that stand here."""
    getattr(import_module(f"app.entries.{module}"), f"{name}_page")(*arguments)


def page_tabs(shown: Menu, page: st.Page) -> None:
    """The tabs of the page's entry, if it has several views; marks the entry in the sidebar."""
    views = shown.tabs.get(page.url_path, ())
    if len(views) < 2:
        return
    entry = views[0][0].url_path
    if page.url_path != entry:
        # Streamlit marks only the page itself, which the sidebar does not list.
        selector = f'[data-testid="stSidebarNavLink"][href$="/{entry}"]'
        st.html(f"<style>{selector} {{ background: #8884; }} {selector} span {{ font-weight: 600; }}</style>")
    with st.container(key=TABS, horizontal=True, gap="small"):
        for view, title in views:
            link(view, title, **from_url(RUN))


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


@dataclass(frozen=True)
class Moved:
    """The page that took the place of a former one, which parameters have other names there, and which are added."""

    page: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)


MOVED = {
    "difference": Moved("two_runs", renamed={"a": "run"}, added={"panes": "text,kl"}),
    "killed": Moved("restore"),
    "atlas": Moved("papers"),
    "zsmerge": Moved("papers", added={"paper": "zsmerge"}),
    "kvmerger": Moved("papers", added={"paper": "kvmerger"}),
    "pyramid_pool": Moved("papers", added={"paper": "pyramid-pool"}),
    "keepkv": Moved("papers", added={"paper": "keepkv"}),
    "gvote": Moved("papers", added={"paper": "gvote"}),
    "beyond": Moved("papers", added={"paper": "beyond"}),
}


def current_place(page: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The page and parameters that a link to `page`, of today or before, means."""
    if page not in MOVED:
        return page, dict(query)
    moved = MOVED[page]
    # A new name wins over an old parameter of that name, as the run that a difference begins with.
    kept = {name: value for name, value in query.items() if name not in moved.renamed}
    renamed = {moved.renamed[name]: value for name, value in query.items() if name in moved.renamed}
    return current_place(moved.page, {**kept, **renamed, **moved.added})


def open_moved(name: str) -> None:
    """Open what took the place of a former page."""
    page, query = current_place(name, params())
    go(page, **query)
