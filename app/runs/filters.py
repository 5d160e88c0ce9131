"""Search, filters, order and saved views of the table of runs, all stored in the URL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.navigation.selection import runs_root
from app.runs.table import COLUMNS, pick_columns
from app.session.url_state import get_param, params, set_param
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.library import find
from kvlab.library.find import ANSWERS, SORTS, Search, from_url, to_url

STATES = ("complete", "running", "cancelled", "failed")


def filters(table: pd.DataFrame) -> Search:
    """Draw the widgets and return the query."""
    current = from_url(params())
    search, narrow, order, columns, views = st.columns([3.7, 1.8, 1.3, 1.5, 1.3], vertical_alignment="bottom")
    text = search.text_input(
        "Search",
        current.text,
        placeholder="Words of the title, prompt, note or tags",
        key="runs_text",
        label_visibility="collapsed",
    )
    with narrow.popover(_count("Filter", current), icon=":material/filter_alt:", width="stretch", key="runs-filter"):
        chosen = _choices(table, current)
    with order.popover("Sort", icon=":material/sort:", width="stretch", key="runs-sort"):
        names = list(SORTS)
        sort = st.selectbox("Sort by", names, names.index(current.sort), SORTS.__getitem__, key="runs_sort")
        turned = st.toggle("Reverse order", current.turned, key="runs_turned")
    wanted = Search(text=text.strip(), sort=sort, turned=turned, **chosen)
    _put_into_url(wanted)
    with columns:
        pick_columns()
    with views.popover("Views", icon=":material/bookmarks:", width="stretch", key="runs-views"):
        _views(wanted)
    return wanted


def _choices(table: pd.DataFrame, current: Search) -> dict:
    several = {
        "kinds": ("Kind", ["comparison", "evaluation", "benchmark"]),
        "states": ("State", STATES),
        "models": ("Model", _words(name.split(", ") for name in table["model"])),
        "methods": ("Method", _words(table["methods"])),
        "budgets": ("Budget", _words(table["budgets"])),
        "tags": ("Tag", _words(table["tags"])),
        "answers": ("Answer", list(ANSWERS)),
    }
    if table["owner"].any() or current.owners:
        several["owners"] = ("Owner", _words([table["owner"]]))
    chosen: dict = {}
    for name, (label, options) in several.items():
        # Values in the URL that no row has stay in the list, so that the user sees why nothing is found.
        values = [*options, *(value for value in getattr(current, name) if value not in options)]
        words = {"answers": ANSWERS.get, "models": model_title}.get(name, str)
        chosen[name] = tuple(
            st.multiselect(label, values, getattr(current, name), format_func=words, key=f"runs_{name}")  # type: ignore[arg-type]  # words of any option
        )
    first, last = st.columns(2)
    since = first.date_input("From", current.since or None, key="runs_since")
    until = last.date_input("To", current.until or None, key="runs_until")
    chosen |= {"since": since.isoformat() if since else "", "until": until.isoformat() if until else ""}
    chosen["starred"] = st.toggle("Starred only", current.starred, key="runs_starred")
    chosen["archived"] = st.toggle("Show the archive", current.archived, key="runs_archived")
    return chosen


def _words(values: Iterable[Iterable[str]]) -> list[str]:
    return sorted({word for words in values for word in words if word}, key=str.casefold)


def _count(label: str, current: Search) -> str:
    """The label with the number of active filters, from the widgets, as the URL is updated after them."""
    names = [field.name for field in fields(Search) if field.name not in ("text", "sort", "turned")]
    set_ = sum(bool(st.session_state.get(f"runs_{name}", getattr(current, name))) for name in names)
    return f"{label} ({set_})" if set_ else label


def _put_into_url(wanted: Search) -> None:
    new = to_url(wanted)
    old = to_url(from_url(params()))
    for name in old.keys() - new.keys():
        set_param(name, None)
    for name, value in new.items():
        if get_param(name) != value:
            set_param(name, value, force=True)


def _views(wanted: Search) -> None:
    """The saved views: filters, order and columns."""
    root = runs_root()
    for view in find.saved_views(root):
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(plain(view.name), key=f"view-{view.name}", width="stretch"):
                _reset_widgets()
                go("runs", **view.query)
            if st.button("", icon=":material/close:", key=f"unview-{view.name}", help="Delete this view"):
                find.remove_view(root, view.name)
                st.rerun()
    name = st.text_input("Name of the current view", key="runs_view_name", placeholder="KeepKV, right answers")
    if st.button("Save this view", key="runs_view_save", disabled=not name.strip()):
        columns = {name: value for name, value in params().items() if name == COLUMNS}
        try:
            find.save_view(root, name, to_url(wanted) | columns)
        except UserError as error:
            st.error(plain(str(error)))
            return
        st.rerun()


def _reset_widgets() -> None:
    """Let the widgets take their values from the URL again."""
    for name in [name for name in st.session_state if str(name).startswith("runs_")]:
        del st.session_state[name]
