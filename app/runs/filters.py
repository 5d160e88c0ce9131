"""What the table of runs is narrowed and sorted by; all of it stands in the address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.text import plain
from app.navigation.selection import runs_root
from app.runs.table import pick_columns
from kvlab.common.errors import UserError
from kvlab.library import saved_views
from kvlab.library.find import ANSWERS, SORTS, Search, from_url, to_url

STATES = ("complete", "running", "cancelled", "failed")
COLUMNS = "columns"


def filters(table: pd.DataFrame) -> Search:
    """The widgets, and what they ask for."""
    asked = from_url(st.query_params.to_dict())
    search, narrow, order, columns, views = st.columns([3.7, 1.8, 1.3, 1.5, 1.3], vertical_alignment="bottom")
    text = search.text_input(
        "Search", asked.text, placeholder="Words of the title, prompt, note or tags", key="runs_text",
        label_visibility="collapsed",
    )  # fmt: skip
    with narrow.popover(_count("Filter", asked), icon=":material/filter_alt:", width="stretch", key="runs-filter"):
        chosen = _choices(table, asked)
    with order.popover("Sort", icon=":material/sort:", width="stretch", key="runs-sort"):
        names = list(SORTS)
        sort = st.selectbox("Sort by", names, names.index(asked.sort), SORTS.__getitem__, key="runs_sort")
        turned = st.toggle("The other way round", asked.turned, key="runs_turned")
    wanted = Search(text=text.strip(), sort=sort, turned=turned, **chosen)
    _into_address(wanted)
    with columns:
        pick_columns()
    with views.popover("Views", icon=":material/bookmarks:", width="stretch", key="runs-views"):
        _views(wanted)
    return wanted


def _choices(table: pd.DataFrame, asked: Search) -> dict:
    several = {
        "kinds": ("Kind", ["comparison", "evaluation", "benchmark"]),
        "states": ("State", STATES),
        "models": ("Model", _words(name.split(", ") for name in table["model"])),
        "methods": ("Method", _words(table["methods"])),
        "budgets": ("Budget", _words(table["budgets"])),
        "tags": ("Tag", _words(table["tags"])),
        "answers": ("Answer", list(ANSWERS)),
    }
    if table["owner"].any() or asked.owners:
        several["owners"] = ("Who", _words([table["owner"]]))
    chosen: dict = {}
    for name, (label, options) in several.items():
        # What the address asks for and is not here stays in the list, so that one sees why nothing is found.
        there = [*options, *(value for value in getattr(asked, name) if value not in options)]
        words = ANSWERS.get if name == "answers" else str
        chosen[name] = tuple(
            st.multiselect(label, there, getattr(asked, name), format_func=words, key=f"runs_{name}")  # type: ignore[arg-type]
        )
    first, last = st.columns(2)
    since = first.date_input("From", asked.since or None, key="runs_since")
    until = last.date_input("To", asked.until or None, key="runs_until")
    chosen |= {"since": since.isoformat() if since else "", "until": until.isoformat() if until else ""}
    chosen["starred"] = st.toggle("Starred only", asked.starred, key="runs_starred")
    chosen["archived"] = st.toggle("The archive", asked.archived, key="runs_archived")
    return chosen


def _words(values: Iterable[Iterable[str]]) -> list[str]:
    return sorted({word for words in values for word in words if word}, key=str.casefold)


def _count(label: str, asked: Search) -> str:
    """The label, and how many filters are set, as the widgets say: the address follows once they are drawn."""
    names = [field.name for field in fields(Search) if field.name not in ("text", "sort", "turned")]
    set_ = sum(bool(st.session_state.get(f"runs_{name}", getattr(asked, name))) for name in names)
    return f"{label} ({set_})" if set_ else label


def _into_address(wanted: Search) -> None:
    said, known = to_url(wanted), to_url(from_url(st.query_params.to_dict()))
    for name in known.keys() - said.keys():
        st.query_params.pop(name, None)
    for name, value in said.items():
        if st.query_params.get(name) != value:
            st.query_params[name] = value


def _views(wanted: Search) -> None:
    """Views somebody named: filters, order and columns."""
    root = runs_root()
    for view in saved_views.saved_views(root):
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(plain(view.name), key=f"view-{view.name}", width="stretch"):
                _forget()
                go("runs", **view.query)
            forget = {"icon": ":material/close:", "key": f"unview-{view.name}", "help": "Forget this view"}
            if permission.button("", permission.why_not(), **forget):
                saved_views.remove_view(root, view.name)
                st.rerun()
    name = st.text_input("Name what is shown now", key="runs_view_name", placeholder="KeepKV, right answers")
    if permission.button("Save this view", permission.why_not(), key="runs_view_save", disabled=not name.strip()):
        columns = {COLUMNS: st.query_params[COLUMNS]} if COLUMNS in st.query_params else {}
        try:
            saved_views.save_view(root, name, to_url(wanted) | columns)
        except UserError as error:
            st.error(plain(str(error)))
            return
        st.rerun()


def _forget() -> None:
    """Widgets take their values from the address again."""
    for name in [name for name in st.session_state if str(name).startswith("runs_")]:
        del st.session_state[name]
