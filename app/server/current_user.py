"""The person in front of this page, and what stands before the first page: signing in, or that nobody has to."""

from __future__ import annotations

import os
from urllib.parse import unquote

import streamlit as st

from app.base.text import plain
from kvlab.common.errors import UserError
from kvlab.server.binding import OPEN, OPEN_TO_EVERYONE
from kvlab.server.settings import Lab, lab
from kvlab.server.users import ALONE, Role, User, set_current_user

NAME, ROLE = "kvlab_name", "kvlab_role"  # in `st.user`, from the headers that `app.server.gate` writes itself
SIGN_OUT = "/lab/sign-out"
DOES = {Role.LOOK: "may look", Role.RUN: "may run", Role.ADMINISTER: "administers"}


def current_person() -> User:
    """Who asks, as the server has found out; nobody where it could not, and whoever sits here in a lab of one."""
    found = lab()
    return ALONE if found is None else _known(found)


def let_in() -> bool:
    """Whether the page may be drawn; else this has drawn how to sign in, or why that is of no use."""
    try:
        found = lab()
        person = current_person()
    except UserError as error:
        st.error(plain(str(error)))
        return False
    if found is None:
        if os.environ.get(OPEN):
            st.sidebar.warning(f"{OPEN_TO_EVERYONE} Start it with `--lab`.", icon=":material/lock_open:")
        return True
    if found.people.way == "oidc" and not st.user.get("is_logged_in"):
        st.title("kvlab")
        if st.button("Sign in", type="primary"):
            st.login()
        return False
    if person.role < Role.LOOK:
        st.error("You are not on the list of this lab: ask its administrator.")
    _who(found, person)
    return person.role >= Role.LOOK


def _known(found: Lab) -> User:
    if found.people.way == "oidc":
        name = st.user.get(found.people.claim) if st.user.get("is_logged_in") else None
        return found.people.person(str(name)) if name else User("", Role.NOBODY)
    name, role = (unquote(str(st.user.get(key) or "")) for key in (NAME, ROLE))
    if not name:
        return User("", Role.NOBODY)
    return User(name, Role(role)) if found.people.way == "token" else found.people.person(name)


def _who(found: Lab, person: User) -> None:
    with st.sidebar.container(horizontal=True, vertical_alignment="center", key="who"):
        if person.name:
            st.caption(f"{plain(person.name)} · {DOES.get(person.role, 'may nothing')}")
        if found.people.way == "oidc" and st.button("Sign out", type="tertiary"):
            st.logout()
        if found.people.way == "token":
            st.markdown(f'<a href="{SIGN_OUT}" target="_self">Sign out</a>', unsafe_allow_html=True)


set_current_user(current_person)
