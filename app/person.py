"""The person in front of this page."""

from __future__ import annotations

from urllib.parse import unquote

import streamlit as st

from kvlab.lab.person import ALONE, Person, Role, ask_who
from kvlab.lab.settings import lab

NAME, ROLE = "kvlab_name", "kvlab_role"  # in `st.user`, from the headers that `app.serve` writes itself


def current_person() -> Person:
    """Who asks, as the server has found out; nobody where it could not, and whoever sits here in a lab of one."""
    found = lab()
    if found is None:
        return ALONE
    if found.people.way == "oidc":
        name = st.user.get(found.people.claim) if st.user.get("is_logged_in") else None
        return found.people.person(str(name)) if name else Person("", Role.NOBODY)
    name, role = (unquote(str(st.user.get(key) or "")) for key in (NAME, ROLE))
    if not name:
        return Person("", Role.NOBODY)
    return Person(name, Role(role)) if found.people.way == "token" else found.people.person(name)


ask_who(current_person)
