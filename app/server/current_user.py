"""The current user, and the sign-in in front of the first page."""

from __future__ import annotations

import os
from urllib.parse import unquote

import streamlit as st

from app.base.text import plain
from app.session.open_runs import runs_root
from kvlab.common.binding import OPEN, OPEN_TO_EVERYONE
from kvlab.common.lab import ALONE, User, lab, set_current_user
from kvlab.core.errors import UserError
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


NAME = "kvlab_name"  # in `st.user`, from the header that `app.server.gate` sets


def current_person() -> User:
    """The authenticated user, or the only one of a single-user server. Raises UserError if nobody has signed in."""
    settings = lab()
    if settings is None:
        return ALONE
    if settings.people.way == "oidc":
        name = st.user.get(settings.people.claim) if st.user.get("is_logged_in") else None
        missing = f"Sign in first: no {settings.people.claim!r} came from the identity provider."
    else:
        name = unquote(str(st.user.get(NAME) or ""))
        missing = "Sign in first: no name came from the lab's proxy."
    if not name:
        raise UserError(missing)
    return User(str(name))


def let_in() -> bool:
    """Whether the user may see the page; draws the sign-in, or why access is denied, if not."""
    try:
        settings = lab()
        if settings is not None and settings.people.way == "oidc" and not st.user.get("is_logged_in"):
            st.title("kvlab")
            if st.button("Sign in", type="primary"):
                st.login()
            return False
        person = current_person()
    except UserError as error:
        st.error(plain(str(error)))
        if st.user.get("is_logged_in") and st.button("Sign out"):
            st.logout()
        return False
    if settings is None:
        if os.environ.get(OPEN):
            st.sidebar.warning(f"{OPEN_TO_EVERYONE} Start it with `--lab`.", icon=":material/lock_open:")
        return True
    with st.sidebar.container(horizontal=True, vertical_alignment="center", key="who"):
        st.caption(plain(person.name))
        if settings.people.way == "oidc" and st.button("Sign out", type="tertiary"):
            st.logout()
    return True


set_current_user(current_person)
