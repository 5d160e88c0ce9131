"""Former pages, by their place in links, and where these lead now."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.links import MOVED, go
from app.session.url_state import params


def moved_pages() -> list[st.Page]:
    """Hidden pages that open what took their place (`app.base.links.MOVED`)."""
    return [
        st.Page(partial(_open, name), title=name.capitalize(), url_path=name, visibility="hidden") for name in MOVED
    ]


def _open(name: str) -> None:
    """Open the new place with the address's parameters; the page of two runs named the first one `a`."""
    query = params()
    if name == "difference" and "zoom" not in query:
        first = query.pop("a", None) or query.get("run")
        query |= {"panes": "text,kl"} | ({"run": first} if first else {})
    go(name, **query)
