"""Whether Streamlit draws the page, or a part of it alone (`st.fragment`)."""

from __future__ import annotations

from streamlit.runtime.scriptrunner import get_script_run_ctx


def drawn_alone() -> bool:
    """True while only a part of the page is drawn again, False while all of it is, and where nothing is drawn."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and bool(context.fragment_ids_this_run)
