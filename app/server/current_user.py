"""The current user, and the sign-in in front of the first page."""

from __future__ import annotations

import os
from urllib.parse import unquote

import streamlit as st

from app.base.text import plain
from kvlab.core.errors import UserError
from kvlab.server.binding import OPEN, OPEN_TO_EVERYONE
from kvlab.server.settings import Lab, lab
from kvlab.server.users import ALONE, Role, User, set_current_user

NAME = "kvlab_name"  # in `st.user`, from the header that `app.server.gate` sets
DOES = {Role.LOOK: "may look", Role.RUN: "may run", Role.ADMINISTER: "administers"}


def current_person() -> User:
    """The authenticated user; without a role if unknown, and the only user of a single-user server."""
    settings = lab()
    return ALONE if settings is None else _signed_in(settings)


def let_in() -> bool:
    """Whether the user may see the page; draws the sign-in, or why access is denied, if not."""
    try:
        settings = lab()
        person = current_person()
    except UserError as error:
        st.error(plain(str(error)))
        return False
    if settings is None:
        if os.environ.get(OPEN):
            st.sidebar.warning(f"{OPEN_TO_EVERYONE} Start it with `--lab`.", icon=":material/lock_open:")
        return True
    if settings.people.way == "oidc" and not st.user.get("is_logged_in"):
        st.title("kvlab")
        if st.button("Sign in", type="primary"):
            st.login()
        return False
    if person.role < Role.LOOK:
        st.error("You are not on the list of this lab: ask its administrator.")
    _sidebar(settings, person)
    return person.role >= Role.LOOK


def _signed_in(settings: Lab) -> User:
    if settings.people.way == "oidc":
        name = st.user.get(settings.people.claim) if st.user.get("is_logged_in") else None
        return settings.people.person(str(name)) if name else User("", Role.NOBODY)
    name = unquote(str(st.user.get(NAME) or ""))
    return settings.people.person(name) if name else User("", Role.NOBODY)


def _sidebar(settings: Lab, person: User) -> None:
    with st.sidebar.container(horizontal=True, vertical_alignment="center", key="who"):
        if person.name:
            st.caption(f"{plain(person.name)} · {DOES.get(person.role, 'has no access')}")
        if settings.people.way == "oidc" and st.button("Sign out", type="tertiary"):
            st.logout()


set_current_user(current_person)
