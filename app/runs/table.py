"""The table of runs: one row a kept thing, of which several can be chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from app.figures.export_menu import Offer, menu
from app.figures.figure import slug
from app.navigation.selection import runs_root
from kvlab.figures.base.words import byte_size
from kvlab.library import listing as library
from kvlab.library.items import COLUMNS as KEPT
from kvlab.library.listing import Listing
from kvlab.report.views import Table, table_of

READ_SECONDS = PAUSE_SECONDS = 1.5
DRAWN = "runs-drawn"
ROW, HEAD, MOST_HEIGHT = 35, 38, 560
MOST_LISTED = 40  # rows on a slide
PAGES = {
    "comparison": ("compare", "comparison"),
    "evaluation": ("quality", "evaluation"),
    "benchmark": ("speed", "file"),
}
TITLES = {
    "starred": "★", "open": "open", "title": "title", "answer": "answers", "least_kl": "closest KL",
    "methods": "methods", "budgets": "budgets", "model": "model", "tokens": "prompt tokens", "created": "date (UTC)",
    "owner": "who",
    "tags": "tags", "kind": "kind", "score": "score", "runs": "runs", "bytes": "MiB", "status": "state",
    "closest": "closest run", "note": "note", "id": "id",
}  # fmt: skip
USUAL = [name for name in TITLES if name not in ("closest", "note", "id", "status")]
HELP: dict[str, Any] = {
    "least_kl": "Nats a token: the compressed run of the comparison that stays closest to the full cache.",
    "score": "Mean score of an evaluation's compressed rows, over tasks and budgets: for sorting, not for a verdict.",
    "answer": "Compressed runs whose own text holds the expected answer, of those that could be judged.",
    "runs": "Runs of a comparison, or rows of results.",
}


def shelf() -> Listing:
    """What is kept; read anew only when something there changed, or goes on."""
    known = _shelf(runs_root(), library.stamp(runs_root()))
    return library.list_all(runs_root()) if (known.table["status"] == "running").any() else known


@st.cache_resource(max_entries=16, show_spinner=False)
def _shelf(root: Path, stamp: tuple) -> Listing:
    return library.list_all(root)


def runs_table(found: pd.DataFrame, count: str, asked: str) -> pd.DataFrame:
    """Draw the rows; returns those that are chosen.

    A slide of them says how many there are (`count`) and by what they were `asked` for; it has the chosen ones, if any.
    """
    columns = asked_columns()
    if columns == USUAL:  # only evaluations have a score, and only runs on a shared server somebody who asked
        empty = {"score": found["score"].isna().all(), "owner": not found["owner"].any()}
        columns = [name for name in columns if not empty.get(name)]
    shown = found.assign(open=[_address(row.kind, row.id) for row in found.itertuples()])[columns]
    shown = shown.rename(columns=TITLES)
    if "bytes" in columns:
        shown["MiB"] = (shown["MiB"].astype("Float64") / 2**20).round(2)
    if "starred" in columns:
        shown["★"] = ["★" if one else "" for one in shown["★"]]
    if "created" in columns:
        shown["date (UTC)"] = pd.to_datetime(shown["date (UTC)"])
    for name in ("methods", "budgets", "tags"):
        if name in columns:
            shown[TITLES[name]] = [list(words) for words in shown[TITLES[name]]]
    # Another set of rows is another table: a choice made in the one means nothing in the other.
    key = f"runs-table-{hash(tuple(found['kind'] + '/' + found['id']))}"
    event = st.dataframe(
        shown, hide_index=True, column_config=_config(), on_select="rerun", selection_mode="multi-row", key=key,
        height=min(HEAD + ROW * max(len(shown), 1) + 2, MOST_HEIGHT), alt="One row a kept comparison or result",
        placeholder="",
    )  # fmt: skip
    places = event["selection"]["rows"]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs-away"):
        st.download_button(
            "CSV", lambda: found[list(KEPT)].to_csv(index=False), f"{slug('runs')}.csv", key="runs-csv",
            on_click="ignore", icon=":material/download:", type="tertiary",
        )  # fmt: skip
        rows = shown.iloc[places] if places else shown
        menu(Offer("Runs", lambda: listed(rows), count, f"page Runs · {asked}"), "runs-list")
    return found.iloc[places]


def listed(rows: pd.DataFrame) -> Table:
    """The rows as a slide has them, without what can only be clicked."""
    left = rows.drop(columns="open", errors="ignore")
    words = {name: left[name].map(", ".join) for name in ("methods", "budgets", "tags") if name in left}
    if (date := "date (UTC)") in left:
        words[date] = left[date].dt.strftime("%d %b %Y, %H:%M")
    return table_of(left.assign(**words), MOST_LISTED * max(1, len(left.columns)))


def count_line(table: pd.DataFrame, found: pd.DataFrame) -> str:
    """How many rows are shown of how many, and what all take on disk."""
    kinds = ", ".join(
        f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in table["kind"].value_counts().items()
    )
    size = float(table["bytes"].sum())
    return f"{len(found):,} shown of {kinds}{f', {byte_size(size)} on disk' if size else ''}."


def begin_reading(shelf: Listing) -> None:
    """Reads what the index does not have yet once the page is drawn: the table must not wait for it."""
    st.session_state[DRAWN] = False
    read_further(shelf)


@st.fragment(run_every=PAUSE_SECONDS)
def read_further(shelf: Listing) -> None:
    """Reads answers and sizes that the index does not have yet, a little at a time; the table follows at the end."""
    left = st.session_state.get("runs_left", len(shelf.unread))
    st.caption(f"Answers, closeness and sizes of {left:,} comparisons are still being read.")
    if not st.session_state[DRAWN]:  # a part of the page's own run, of which the browser waits for the end
        st.session_state[DRAWN] = True
        return
    left = shelf.read(READ_SECONDS)
    st.session_state["runs_left"] = left
    if not left:
        del st.session_state["runs_left"]
        st.rerun()


def pick_columns() -> None:
    """Which columns the table has, kept in the address."""
    with st.popover("Columns", icon=":material/view_column:", width="stretch", key="runs-columns"):
        chosen = st.multiselect(
            "Columns", list(TITLES), asked_columns(), format_func=TITLES.__getitem__, key="runs_columns",
            label_visibility="collapsed",
        )  # fmt: skip
    if chosen and chosen != USUAL:
        st.query_params["columns"] = ".".join(chosen)
    else:
        st.query_params.pop("columns", None)


def asked_columns() -> list[str]:
    """Those the address names, or the usual ones."""
    return [name for name in st.query_params.get("columns", "").split(".") if name in TITLES] or USUAL


def _address(kind: str, name: str) -> str:
    page, parameter = PAGES[kind]
    return f"/{page}?{urlencode({parameter: name})}"


def _config() -> dict[str, Any]:
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    return {
        "★": text(width=36),
        "open": st.column_config.LinkColumn(display_text="open", width=52, help="In a tab of its own."),
        "title": text(width="medium"),
        "date (UTC)": st.column_config.DatetimeColumn(format="D MMM YYYY, HH:mm", width=130),
        "methods": st.column_config.ListColumn(width="medium"),
        "budgets": st.column_config.ListColumn(width="small"),
        "tags": st.column_config.ListColumn(width="small"),
        "answers": text(help=HELP["answer"], width=100),
        "closest KL": number(format="%.3g", help=HELP["least_kl"], width=90),
        "score": number(format="%.3g", help=HELP["score"], width=70),
        "prompt tokens": number(format="localized", width=100),
        "runs": number(help=HELP["runs"], width=60),
        "MiB": number(format="%.1f", help="On disk.", width=70),
    }
