"""The table of all results, actions on its selected rows, the bin, and the import."""

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import ago, plain, shorten, slug
from app.base.widgets import attempt, button_unless, why_not_change, widget_options
from app.figures.export_menu import Offer, menu
from app.navigation.selection import runs_root
from app.queue.job_panel import queue_job
from app.session.url_state import get_param, params, set_param
from kvlab.common.atomic_write import replace_file
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.jobs.access_check import check_access
from kvlab.library import archive, find, items, recycle_bin
from kvlab.library.find import ANSWERS, SORTS, Listing, Search, describe_search, from_url, to_url
from kvlab.planning.choices import local_models, model_field_help
from kvlab.report.views import Table, table_of
from kvlab.requests.compare import RECORDINGS, ImportRequest
from kvlab.trace.catalogue import list_comparisons
from kvlab.trace.user_labels import change_labels, change_tags
from kvlab.views.base.words import byte_size

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
    # The number of active filters, from the widgets, as the URL is updated after them.
    narrowing = [field.name for field in fields(Search) if field.name not in ("text", "sort", "turned")]
    active = sum(bool(st.session_state.get(f"runs_{name}", getattr(current, name))) for name in narrowing)
    label = f"Filter ({active})" if active else "Filter"
    with narrow.popover(label, icon=":material/filter_alt:", width="stretch", key="runs-filter"):
        chosen = _choices(table, current)
    with order.popover("Sort", icon=":material/sort:", width="stretch", key="runs-sort"):
        names = list(SORTS)
        sort = st.selectbox("Sort by", names, names.index(current.sort), SORTS.__getitem__, key="runs_sort")
        turned = st.toggle("Reverse order", current.turned, key="runs_turned")
    wanted = Search(text=text.strip(), sort=sort, turned=turned, **chosen)
    new = to_url(wanted)
    old = to_url(from_url(params()))
    for name in old.keys() - new.keys():
        set_param(name, None)
    for name, value in new.items():
        if get_param(name) != value:
            set_param(name, value, force=True)
    with columns:
        # The picker of columns, stored in the URL.
        with st.popover("Columns", icon=":material/view_column:", width="stretch", key="runs-columns"):
            shown = st.multiselect(
                "Columns",
                list(TITLES),
                chosen_columns(),
                format_func=TITLES.__getitem__,
                key="runs_columns",
                label_visibility="collapsed",
            )
        set_param(COLUMNS, ".".join(shown) if shown != DEFAULT_COLUMNS and shown else None, force=True)
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


def _views(wanted: Search) -> None:
    """The saved views: filters, order and columns."""
    root = runs_root()
    for view in find.saved_views(root):
        with st.container(horizontal=True, vertical_alignment="center"):
            if st.button(plain(view.name), key=f"view-{view.name}", width="stretch"):
                # The widgets take their values from the URL again.
                for name in [name for name in st.session_state if str(name).startswith("runs_")]:
                    del st.session_state[name]
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


READ_SECONDS = PAUSE_SECONDS = 1.5
DRAWN = "runs-drawn"
COLUMNS = "columns"
ROW = 35
HEAD = 38
MOST_HEIGHT = 560
MOST_LISTED = 40  # rows on a slide
PAGES = {
    "comparison": ("compare", "comparison"),
    "evaluation": ("quality", "evaluation"),
    "benchmark": ("speed", "file"),
}
TITLES = {
    "starred": "★", "open": "open", "title": "title", "answer": "answers", "least_kl": "smallest KL",
    "methods": "methods", "budgets": "budgets", "model": "model", "tokens": "prompt tokens", "created": "date (UTC)",
    "owner": "owner",
    "tags": "tags", "kind": "kind", "score": "score", "runs": "runs", "bytes": "MiB", "status": "state",
    "closest": "closest run", "note": "note", "id": "id",
}  # fmt: skip
DEFAULT_COLUMNS = [name for name in TITLES if name not in ("closest", "note", "id", "status")]
NUMBER = st.column_config.NumberColumn
TEXT = st.column_config.TextColumn
CONFIG = {
    "★": TEXT(width=36),
    "open": st.column_config.LinkColumn(display_text="open", width=52, help="Opens in a new tab."),
    "title": TEXT(width="medium"),
    "date (UTC)": st.column_config.DatetimeColumn(format="D MMM YYYY, HH:mm", width=130),
    "methods": st.column_config.ListColumn(width="medium"),
    "budgets": st.column_config.ListColumn(width="small"),
    "tags": st.column_config.ListColumn(width="small"),
    "answers": TEXT(
        help="Compressed runs whose own text contains the expected answer, of those that could be judged.", width=100
    ),
    "smallest KL": NUMBER(
        format="%.3g",
        help="KL in nats per token of the compressed run that is closest to the full cache.",
        width=90,
    ),
    "score": NUMBER(
        format="%.3g",
        help="Mean score of an evaluation's compressed rows, over tasks and budgets; meant for sorting only.",
        width=70,
    ),
    "prompt tokens": NUMBER(format="localized", width=100),
    "runs": NUMBER(help="Runs of a comparison, or rows of results.", width=60),
    "MiB": NUMBER(format="%.1f", help="On disk.", width=70),
}


def shelf() -> Listing:
    """The entries of the folder; read again when something has changed or is running."""
    entries = _shelf(runs_root(), find.stamp(runs_root()))
    return find.list_all(runs_root()) if (entries.table["status"] == "running").any() else entries


@st.cache_resource(max_entries=16, show_spinner=False)
def _shelf(root: Path, stamp: tuple) -> Listing:
    return find.list_all(root)


def runs_table(table: pd.DataFrame, found: pd.DataFrame, search: Search) -> pd.DataFrame:
    """Draw the rows of `table` that were `found`, with their number, and return the selected ones.

    A slide of the table has the selected rows, if any, with the number and the search.
    """
    # The number of rows shown, of all rows by kind, and their size on disk.
    kinds = ", ".join(
        f"{number:,} {kind}{'s' if number != 1 else ''}" for kind, number in table["kind"].value_counts().items()
    )
    size = float(table["bytes"].sum())
    count = f"{len(found):,} shown of {kinds}{f', {byte_size(size)} on disk' if size else ''}."
    with st.container(key="runs-count"):
        st.caption(plain(count))
    columns = chosen_columns()
    if columns == DEFAULT_COLUMNS:  # only evaluations have a score, and only runs on a shared server an owner
        empty = {"score": found["score"].isna().all(), "owner": not found["owner"].any()}
        columns = [name for name in columns if not empty.get(name)]
    titles = [", ".join(map(model_title, names.split(", "))) for names in found["model"]]
    addresses = [f"/{PAGES[row.kind][0]}?{urlencode({PAGES[row.kind][1]: row.id})}" for row in found.itertuples()]
    shown = found.assign(open=addresses, model=titles)[columns]
    shown = shown.rename(columns=TITLES)
    if "bytes" in columns:
        shown["MiB"] = (shown["MiB"].astype("Float64") / 2**20).round(2)
    if "starred" in columns:
        shown["★"] = ["★" if starred else "" for starred in shown["★"]]
    if "created" in columns:
        shown["date (UTC)"] = pd.to_datetime(shown["date (UTC)"])
    for name in ("methods", "budgets", "tags"):
        if name in columns:
            shown[TITLES[name]] = [list(words) for words in shown[TITLES[name]]]
    # Other rows are another table: a selection does not carry over.
    key = f"runs-table-{hash(tuple(found['kind'] + '/' + found['id']))}"
    event = st.dataframe(
        shown,
        hide_index=True,
        column_config=CONFIG,
        on_select="rerun",
        selection_mode="multi-row",
        key=key,
        height=min(HEAD + ROW * max(len(shown), 1) + 2, MOST_HEIGHT),
        alt="One row per comparison, evaluation or benchmark",
        placeholder="",
    )
    places = event["selection"]["rows"]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs-away"):
        st.download_button(
            "CSV",
            lambda: found[list(items.COLUMNS)].to_csv(index=False),
            f"{slug('runs')}.csv",
            key="runs-csv",
            on_click="ignore",
            icon=":material/download:",
            type="tertiary",
        )
        rows = shown.iloc[places] if places else shown
        menu(Offer("Runs", lambda: slide_rows(rows), count, f"All runs · {describe_search(search)}"), "runs-list")
    return found.iloc[places]


def slide_rows(rows: pd.DataFrame) -> Table:
    """The rows for a slide, without the links."""
    table = rows.drop(columns="open", errors="ignore")
    texts = {name: table[name].map(", ".join) for name in ("methods", "budgets", "tags") if name in table}
    if (date := "date (UTC)") in table:
        texts[date] = table[date].dt.strftime("%d %b %Y, %H:%M")
    return table_of(table.assign(**texts), MOST_LISTED * max(1, len(table.columns)))


def begin_reading(shelf: Listing) -> None:
    """Read outcomes that are missing in the index once the page is drawn, so that the table need not wait."""
    st.session_state[DRAWN] = False
    read_further(shelf)


@st.fragment(run_every=PAUSE_SECONDS)
def read_further(shelf: Listing) -> None:
    """Read missing answers and sizes a little at a time, then rerun the page."""
    left = st.session_state.get("runs_left", len(shelf.unread))
    st.caption(f"Reading answers, KL and sizes of {left:,} more comparisons.")
    if not st.session_state[DRAWN]:  # the full run, for whose end the browser waits
        st.session_state[DRAWN] = True
        return
    left = shelf.read(READ_SECONDS)
    st.session_state["runs_left"] = left
    if not left:
        del st.session_state["runs_left"]
        st.rerun()


def chosen_columns() -> list[str]:
    """The columns in the URL, or the default ones."""
    return [name for name in (get_param(COLUMNS) or "").split(".") if name in TITLES] or DEFAULT_COLUMNS


MAX_IMPORT_BYTES = 4 << 30  # unpacked, through a browser
RECORDED = ".kvlab"  # what ends the name of a recording
LAST_DELETED = "runs_last_deleted"
DONE = "runs_done"


def actions(chosen: pd.DataFrame) -> None:
    """Buttons for the selected rows, or a sentence on how to select some."""
    if words := st.session_state.pop(DONE, ""):
        st.success(plain(words))
    if last := st.session_state.get(LAST_DELETED):
        root = runs_root()
        deleted = [entry for entry in recycle_bin.list_bin(root) if entry.key in last]
        if deleted:
            with st.container(horizontal=True, vertical_alignment="center", border=True):
                what = deleted[0].title if len(deleted) == 1 else f"{len(deleted)} entries"
                size = byte_size(sum(entry.bytes for entry in deleted))
                st.markdown(plain(f"{shorten(what, 60)} moved to the bin; emptying it frees {size}."), width="stretch")
                if st.button("Undo", icon=":material/undo:", key="runs-undo"):
                    keys = [entry.key for entry in deleted]
                    _do(lambda: [recycle_bin.restore_deleted(root, key) for key in keys], f"Restored {what}.")
        else:
            del st.session_state[LAST_DELETED]
    if chosen.empty:
        st.caption("Select rows at their left edge to open, compare, name, tag, export or delete them.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="runs-actions"):
        st.markdown(f"**{len(chosen)} selected**")
        _compare(chosen)
        _label(chosen)
        _flip(chosen, "starred", "Star", "Unstar", ":material/star:")
        _flip(chosen, "archived", "Archive", "Unarchive", ":material/archive:")
        if len(chosen) == 1:
            row = chosen.iloc[0]
            st.download_button(
                "Export",
                partial(_archive_of, row),  # called after the page has run
                f"{row['id']}{archive.SUFFIX}",
                key="runs-export",
                on_click="ignore",
                icon=":material/download:",
                help="One file that can be imported elsewhere.",
            )
        help_text = "Moves the rows to the bin, from which they can be restored."
        if button_unless(
            "Delete", why_not_change(chosen["owner"]), icon=":material/delete:", key="runs-delete", help=help_text
        ):
            root = runs_root()
            deleted = []
            try:
                for one in chosen.itertuples():
                    deleted.append(recycle_bin.delete(root, one.kind, one.members, one.title))
            except UserError as error:
                st.error(plain(str(error)))
            if deleted:
                st.session_state[LAST_DELETED] = [entry.key for entry in deleted]
                st.rerun()


def bin_and_import() -> None:
    """The bin, and the import of exported files and recordings."""
    root = runs_root()
    deleted = recycle_bin.list_bin(root)
    size = byte_size(sum(entry.bytes for entry in deleted))
    with st.container(horizontal=True):
        label = f"Bin ({len(deleted)}, {size})" if deleted else "The bin is empty"
        with st.popover(label, icon=":material/delete_sweep:", disabled=not deleted, key="runs-bin"):
            for entry in deleted[:50]:
                with st.container(horizontal=True, vertical_alignment="center"):
                    when = f"{ago(entry.deleted)} · {byte_size(entry.bytes)}"
                    st.markdown(f"{plain(shorten(entry.title, 60))}  \n:small[{plain(when)}]", width="stretch")
                    if st.button("Restore", key=f"back-{entry.key}"):
                        _do(partial(recycle_bin.restore_deleted, root, entry.key), f"Restored {entry.title}.")
            label = f"Empty the bin and free {size}"
            if st.button(label, key="runs-empty"):
                _do(lambda: recycle_bin.empty_bin(root), "The bin is empty.")
        with st.popover("Import", icon=":material/upload:", key="runs-import"):
            files = st.file_uploader(
                "Files exported by kvlab (.kvlab.zip), or recordings of other caches (.kvlab)",
                key="runs-file",
                type=["zip", RECORDED],
                accept_multiple_files=True,
            )
            recordings = [file for file in files if file.name.endswith(RECORDED)]
            exported = [file for file in files if file not in recordings]
            model = ""
            if recordings:
                model = st.selectbox(
                    "Model that was recorded",
                    local_models(root),
                    accept_new_options=True,
                    help=plain(model_field_help()),
                    key="runs-model",
                )
            if files and st.button("Import", type="primary", key="runs-take"):
                words = f"{len(exported)} imported."
                queued = [queue_job(partial(_import_of, file.name, file.getvalue(), model)) for file in recordings]
                if exported:
                    _do(lambda: [archive.unpack(root, file, MAX_IMPORT_BYTES) for file in exported], words)
                elif job_id := queued[-1]:
                    go("compare", job=job_id)


def _import_of(name: str, content: bytes, model: str) -> ImportRequest:
    """Keep an uploaded recording for the worker, which reads it beside the model; the request for that."""
    file = f"{secrets.token_hex(6)}/{slug(Path(name).stem)}{RECORDED}"
    request = ImportRequest(file=file, model=model, title=f"Import {Path(name).stem}")
    check_access(runs_root(), request)  # before anything is stored
    replace_file(runs_root() / RECORDINGS / file, lambda path: path.write_bytes(content))
    return request


def _compare(chosen: pd.DataFrame) -> None:
    comparisons = [name for row in chosen.itertuples() if row.kind == "comparison" for name in row.members]
    if len(chosen) == 1:
        row = chosen.iloc[0]
        page, name = PAGES[row["kind"]]
        if st.button("Open", type="primary", icon=":material/open_in_new:", key="runs-open"):
            go(page, **{name: row["id"]})
    elif len(comparisons) == len(chosen) and len(comparisons) > 1:
        help_text = "Show these comparisons of the same prompt and model as one, on every page."
        if st.button("Side by side", type="primary", icon=":material/compare:", key="runs-join", help=help_text):
            try:
                items.join_comparisons(runs_root(), items.joint_id(comparisons), list_comparisons(runs_root()))
            except UserError as error:
                st.error(plain(str(error)))
                return
            go("compare", comparison=items.joint_id(comparisons))


def _label(chosen: pd.DataFrame) -> None:
    with st.popover(
        "Name, tags, note", **widget_options(why_not_change(chosen["owner"]), icon=":material/label:", key="runs-label")
    ):
        alone = len(chosen) == 1
        first = chosen.iloc[0]
        if alone:
            name = st.text_input("Name", first["name"] or first["title"], key=f"runs-name-{first['id']}")
            note = st.text_area("Note (Markdown)", first["note"], key=f"runs-note-{first['id']}")
        tags = sorted({tag for words in chosen["tags"] for tag in words})
        add = st.text_input("Add tags, separated by commas", key="runs-add-tags")
        remove = st.multiselect("Remove tags", tags, key="runs-remove-tags")
        if st.button("Save", type="primary", key="runs-save-labels"):
            new = [tag.strip() for tag in add.split(",") if tag.strip()]

            def save() -> None:
                _each(chosen, lambda kind, name: change_tags(runs_root(), name, kind, add=new, remove=remove))
                if alone:
                    changes = {"note": note} | ({"name": name.strip()} if name.strip() != first["title"] else {})
                    _each(chosen, lambda kind, name: change_labels(runs_root(), name, kind, **changes))

            _do(save, "Saved.")


def _flip(chosen: pd.DataFrame, field: str, label: str, undo: str, icon: str) -> None:
    on = not chosen[field].all()
    if button_unless(label if on else undo, why_not_change(chosen["owner"]), icon=icon, key=f"runs-{field}"):
        change = {field: on}
        _do(lambda: _each(chosen, lambda kind, name: change_labels(runs_root(), name, kind, **change)), "")


def _archive_of(row: pd.Series) -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="kvlab-export-"))
    try:
        target = folder / "export.zip"
        archive.pack(runs_root(), row["kind"], row["members"], row["title"], target)
        return target.read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _each(chosen: pd.DataFrame, change: Callable[[Any, str], object]) -> None:
    for row in chosen.itertuples():
        for name in row.members:
            change(row.kind, name)


def _do(work: Callable[[], object], words: str) -> None:
    if attempt(work):
        st.session_state[DONE] = words
        st.rerun()
