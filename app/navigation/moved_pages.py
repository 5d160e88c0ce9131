"""Former pages, by their place in links, and where these lead now."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.links import go
from app.session.url_state import params

PAPER_PAGES = ("atlas", "zsmerge", "kvmerger", "pyramid_pool", "keepkv", "gvote", "beyond")


def moved_pages() -> list[st.Page]:
    """Hidden pages that open the view that took their place."""
    papers = [
        st.Page(partial(paper_page, name), title="Papers", url_path=name, visibility="hidden") for name in PAPER_PAGES
    ]
    return [st.Page(difference, title="Difference of two runs", url_path="difference", visibility="hidden"), *papers]


def difference() -> None:
    """The page of two runs `a` and `b`: the cache wall shows their difference."""
    query = params()
    first = query.pop("a", None) or query.get("run")
    go("wall", **(query | {"panes": "text,kl"} | ({"run": first} if first else {})))


def paper_page(name: str) -> None:
    """The atlas or the page of one paper: the page of all papers shows it, with the paper as a filter."""
    paper = {} if name == "atlas" else {"paper": name.replace("_", "-")}
    go("papers", **(params() | paper))
