"""What was typed on New run, kept in the folder of runs: the address holds its id, and none of its text."""

from __future__ import annotations

import streamlit as st
from pydantic import JsonValue

from app.base.text import plain
from app.navigation.selection import runs_root
from app.session.url_state import get_param, set_param
from kvlab.core.errors import UserError
from kvlab.library.drafts import read_draft, store_draft

NOT_KEPT = "draft-not-kept"  # why the last draft is not in the link


def keep_draft(name: str, content: JsonValue) -> None:
    """Store what was typed and put its id into the parameter `name`; without content the parameter is removed."""
    st.session_state.pop(NOT_KEPT, None)
    draft = None
    if content:
        try:
            draft = store_draft(runs_root(), content)
        except UserError as error:
            st.session_state[NOT_KEPT] = str(error)
    set_param(name, draft, force=True)


def opened_draft(name: str) -> JsonValue:
    """What the link's parameter `name` stands for; None without one, and with a sentence if it is not there."""
    if not (draft := get_param(name)):
        return None
    try:
        return read_draft(runs_root(), draft)
    except UserError as error:
        st.warning(plain(str(error)))
        return None


def show_draft_note() -> None:
    """Say that a link to this page lacks what was typed, if it could not be stored."""
    if why := st.session_state.get(NOT_KEPT):
        st.caption(plain(f"A link to this page does not contain the text: {why}"))
