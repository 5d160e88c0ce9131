"""Entry point of the dashboard: page settings, logo and menu. `kvlab app` starts it; so does `streamlit run`."""

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

from app.base.component import load_plotly_ahead
from app.base.links import copy_link
from app.base.theme import theme
from app.entries.story import caption_bar, offer
from app.navigation import context_bar
from app.navigation.menu import menu, page_tabs, top_tools
from app.navigation.selection import OPENED
from app.server.gate import disk_warning, let_in
from app.session import url_state
from app.session.streamlit_internals import drop_stale_widgets, wait_until_sent
from kvlab.core.assets import asset_path
from kvlab.planning import choices


def main() -> None:
    """Draw the shell and the page of the URL."""
    # A button that fills in a form sets widgets that have defaults, which a URL without parameters means.
    config.set_option("global.disableWidgetStateDuplicationWarning", True)
    st.set_page_config(page_title="kvlab", page_icon=str(asset_path("logo-mark.svg")), layout="wide")
    st.logo(str(asset_path(f"logo-{theme()}.svg")), size="large", icon_image=str(asset_path("logo-mark.svg")))
    if not let_in():
        return
    load_plotly_ahead()
    choices.prefetch()
    shown = menu()
    page = st.navigation(list(shown.pages), expanded=True)
    st.set_page_config(page_title=f"{page.title} · kvlab")
    url_state.drop_unusable_params()
    st.session_state[url_state.PAGE] = page.url_path
    caption_bar(page.url_path)
    context_bar.begin()
    disk_warning()
    url_state.apply_pending()
    # The run and comparison that a link names, for pages that show no run; one opened by default is no choice.
    for name in ("run", "comparison"):
        value = url_state.get_param(name)
        if value and value != st.session_state.get(OPENED):
            url_state.remember(name, value, url=False)
    requested = url_state.params()
    top_tools(shown)
    page_tabs(shown, page)
    page.run()
    url_state.mark_drawn()
    url_state.warn_of_rejected_params(page.url_path, requested)
    offer(page.url_path)
    copy_link()
    drop_stale_widgets()
    wait_until_sent()


main()
