"""Entry point of the dashboard: page settings, logo and menu. `kvlab app` starts it; so does `streamlit run`."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st
from streamlit import config

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # Streamlit puts this file's folder on the path; pages import from the one above.
    sys.path.insert(0, str(ROOT))

from app.server import preimport

preimport.wait()

from app.base.links import copy_link
from app.base.plotly_preload import load_plotly_ahead
from app.base.theme import theme
from app.base.theme_switch import theme_switch
from app.navigation import context_bar
from app.navigation.moved_pages import moved_pages
from app.navigation.selection import OPENED
from app.run_views.plugin_views import view_pages
from app.server.current_user import let_in
from app.server.disk_warning import disk_warning
from app.session.streamlit_internals import drop_stale_widgets, wait_until_sent
from app.session.url_state import (
    PAGE,
    apply_pending,
    drop_unusable_params,
    mark_drawn,
    params,
    remember_linked_run,
    warn_of_rejected_params,
)
from app.story.story_mode import caption_bar, offer
from kvlab.core.assets import asset_path
from kvlab.planning import methods

FIRST = "first"  # the URL path of the start page, which is served at the root
MENU = {
    "": [
        ("start", "Start", "home"),
        ("live", "Live", "forum"),
        ("new_run", "New run", "add_circle"),
        ("runs", "Runs", "folder_open"),
    ],
    "One comparison": [
        ("wall", "Cache wall", "view_comfy"),
        ("spans", "Prompt spans", "segment"),
        ("timeline", "Cache timeline", "view_timeline"),
        ("similarity", "Similarity", "grid_on"),
        ("merges", "Merges, votes and sag", "merge"),
        ("compare", "Compare", "compare"),
    ],
    "Views": [
        ("sag", "Sag and bound", "compress"),
        ("lineage", "Lineage", "account_tree"),
        ("regret", "Regret and budget", "heart_broken"),
        ("killed", "Restore the answer", "mystery"),
        ("autopsy", "Needle autopsy", "search_insights"),
        ("memory", "Memory and cost", "memory"),
        ("serving", "Serving", "dns"),
        ("heads", "Head fingerprints", "fingerprint"),
        ("story", "Story", "bookmarks"),
    ],
    "Evaluations": [
        ("quality", "Quality", "grade"),
        ("safe_budget", "Safe budget", "verified_user"),
        ("speed", "Speed", "speed"),
    ],
    "Papers": [
        ("atlas", "Atlas", "auto_stories"),
        ("zsmerge", "ZSMerge", "article"),
        ("kvmerger", "KVMerger", "article"),
        ("pyramid_pool", "PyramidPool", "article"),
        ("keepkv", "KeepKV", "article"),
        ("gvote", "GVote", "article"),
        ("beyond", "Beyond the five", "article"),
    ],
    "Help": [("glossary", "Glossary", "menu_book")],
}


def pages() -> dict[str, list[st.Page]]:
    """The pages of the menu, by section."""
    sections = {
        section: [
            st.Page(
                script,
                title=title,
                icon=f":material/{icon}:",
                url_path=FIRST if name == "start" else name,
                default=name == "start",
            )
            for name, title, icon in entries
            if (script := ROOT / "pages" / f"{name}.py").exists()
        ]
        for section, entries in MENU.items()
    }
    # The default page is served at the root only, so this hidden one is served at /start.
    named = st.Page(ROOT / "pages" / "start.py", title="Start", url_path="start", visibility="hidden")
    sections |= {"Views from plug-ins": view_pages(), " ": [named, *moved_pages()]}
    return {section: entries for section, entries in sections.items() if entries}


def main() -> None:
    """Draw the shell and the page of the URL."""
    # A button that fills in a form sets widgets that have defaults, which a URL without parameters means.
    config.set_option("global.disableWidgetStateDuplicationWarning", True)
    st.set_page_config(page_title="kvlab", page_icon=str(asset_path("logo-mark.svg")), layout="wide")
    st.logo(str(asset_path(f"logo-{theme()}.svg")), size="large", icon_image=str(asset_path("logo-mark.svg")))
    if not let_in():
        return
    load_plotly_ahead()
    methods.prefetch()
    sections = pages()
    page = st.navigation(sections, expanded=True)
    st.set_page_config(page_title=f"{page.title} · kvlab")
    drop_unusable_params()
    st.session_state[PAGE] = page.url_path
    caption_bar(page.url_path)
    context_bar.begin()
    disk_warning()
    apply_pending()
    remember_linked_run(st.session_state.get(OPENED))
    requested = params()
    theme_switch(["", *(entry.url_path for entries in sections.values() for entry in entries)])
    page.run()
    mark_drawn()
    warn_of_rejected_params(page.url_path, requested)
    offer(page.url_path)
    copy_link()
    drop_stale_widgets()
    wait_until_sent()


main()
