"""Actions on the selected rows of the table of runs, the bin, and the import."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import ago, plain, shorten
from app.base.widgets import attempt, button_unless, why_not_change, widget_options
from app.navigation.selection import runs_root
from app.runs.table import PAGES
from kvlab.core.errors import UserError
from kvlab.library import archive, items
from kvlab.library import recycle_bin as rubbish
from kvlab.trace.user_labels import change_labels, change_tags
from kvlab.views.base.words import byte_size

MAX_IMPORT_BYTES = 4 << 30  # unpacked, through a browser
LAST_DELETED = "runs_last_deleted"
DONE = "runs_done"


def actions(chosen: pd.DataFrame) -> None:
    """Buttons for the selected rows, or a sentence on how to select some."""
    if words := st.session_state.pop(DONE, ""):
        st.success(plain(words))
    if last := st.session_state.get(LAST_DELETED):
        _offer_undo(last)
    if chosen.empty:
        st.caption("Select rows at their left edge to open, compare, name, tag, export or delete them.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="runs-actions"):
        st.markdown(f"**{len(chosen)} selected**")
        _compare(chosen)
        _label(chosen)
        _flip(chosen, "starred", "Star", "Unstar", ":material/star:")
        _flip(chosen, "archived", "Archive", "Unarchive", ":material/archive:")
        _export(chosen)
        help_text = "Moves the rows to the bin, from which they can be restored."
        if button_unless("Delete", _why_not(chosen), icon=":material/delete:", key="runs-delete", help=help_text):
            root = runs_root()
            deleted = []
            try:
                for row in chosen.itertuples():
                    deleted.append(rubbish.delete(root, row.kind, row.members, row.title))
            except UserError as error:
                st.error(plain(str(error)))
            if deleted:
                st.session_state[LAST_DELETED] = [entry.key for entry in deleted]
                st.rerun()


def bin_and_import() -> None:
    """The bin, and the import of exported files."""
    root = runs_root()
    deleted = rubbish.list_bin(root)
    size = byte_size(sum(entry.bytes for entry in deleted))
    with st.container(horizontal=True):
        label = f"Bin ({len(deleted)}, {size})" if deleted else "The bin is empty"
        with st.popover(label, icon=":material/delete_sweep:", disabled=not deleted, key="runs-bin"):
            for entry in deleted[:50]:
                with st.container(horizontal=True, vertical_alignment="center"):
                    when = f"{ago(entry.deleted)} · {byte_size(entry.bytes)}"
                    st.markdown(f"{plain(shorten(entry.title, 60))}  \n:small[{plain(when)}]", width="stretch")
                    if st.button("Restore", key=f"back-{entry.key}"):
                        _do(partial(rubbish.restore_deleted, root, entry.key), f"Restored {entry.title}.")
            label = f"Empty the bin and free {size}"
            if st.button(label, key="runs-empty"):
                _do(lambda: rubbish.empty_bin(root), "The bin is empty.")
        with st.popover("Import", icon=":material/upload:", key="runs-import"):
            files = st.file_uploader(
                "Files exported by kvlab (.kvlab.zip)",
                key="runs-file",
                type=["zip"],
                accept_multiple_files=True,
            )
            if files and st.button("Import", type="primary", key="runs-take"):
                _do(lambda: [archive.unpack(root, file, MAX_IMPORT_BYTES) for file in files], f"{len(files)} imported.")


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
                items.check_joinable(runs_root(), comparisons)
            except UserError as error:
                st.error(plain(str(error)))
                return
            go("compare", comparison=items.joint_id(comparisons))


def _label(chosen: pd.DataFrame) -> None:
    with st.popover("Name, tags, note", **widget_options(_why_not(chosen), icon=":material/label:", key="runs-label")):
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
    if button_unless(label if on else undo, _why_not(chosen), icon=icon, key=f"runs-{field}"):
        change = {field: on}
        _do(lambda: _each(chosen, lambda kind, name: change_labels(runs_root(), name, kind, **change)), "")


def _export(chosen: pd.DataFrame) -> None:
    if len(chosen) != 1:
        return
    row = chosen.iloc[0]
    st.download_button(
        "Export",
        lambda: _archive_of(row),
        f"{row['id']}{archive.SUFFIX}",
        key="runs-export",
        on_click="ignore",
        icon=":material/download:",
        help="One file that can be imported elsewhere.",
    )


def _archive_of(row: pd.Series) -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="kvlab-export-"))
    try:
        target = folder / "export.zip"
        archive.pack(runs_root(), row["kind"], row["members"], row["title"], target)
        return target.read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _offer_undo(keys: list[str]) -> None:
    root = runs_root()
    deleted = [entry for entry in rubbish.list_bin(root) if entry.key in keys]
    if not deleted:
        del st.session_state[LAST_DELETED]
        return
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        what = deleted[0].title if len(deleted) == 1 else f"{len(deleted)} entries"
        size = byte_size(sum(entry.bytes for entry in deleted))
        st.markdown(plain(f"{shorten(what, 60)} moved to the bin; emptying it frees {size}."), width="stretch")
        if st.button("Undo", icon=":material/undo:", key="runs-undo"):
            _do(lambda: [rubbish.restore_deleted(root, entry.key) for entry in deleted], f"Restored {what}.")


def _why_not(chosen: pd.DataFrame) -> str:
    return why_not_change(chosen["owner"])


def _each(chosen: pd.DataFrame, change: Callable[[Any, str], object]) -> None:
    for row in chosen.itertuples():
        for name in row.members:
            change(row.kind, name)


def _do(work: Callable[[], object], words: str) -> None:
    if attempt(work):
        st.session_state[DONE] = words
        st.rerun()
