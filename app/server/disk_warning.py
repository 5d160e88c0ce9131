"""A warning on every page if the folder of runs is full, nearly full, or read-only."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.session.open_runs import runs_root
from kvlab.core.errors import UserError
from kvlab.jobs.disk_usage import folder_usage
from kvlab.trace.index import index_note


def disk_warning() -> None:
    """Show the warning, if there is one."""
    root = runs_root()
    if not root.is_dir():
        return
    try:
        warning = index_note(root) or folder_usage(root).warning
    except (UserError, OSError):
        return  # pages show errors of the folder
    if warning:
        st.warning(plain(warning), icon=":material/hard_drive:")
