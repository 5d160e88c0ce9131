"""A warning on every page if the folder of runs is read-only or its disk nearly full."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.session.open_runs import runs_root
from kvlab.jobs import access_check as disk_space
from kvlab.trace.index import index_note


def disk_warning() -> None:
    """Show the warning, if there is one."""
    root = runs_root()
    if not root.is_dir():
        return
    try:
        warning = index_note(root) or disk_space.disk_warning(root)
    except OSError:
        return  # pages show errors of the folder
    if warning:
        st.warning(plain(warning), icon=":material/hard_drive:")
