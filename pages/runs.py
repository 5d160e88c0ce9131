"""Runs: all that is kept in the folder, found, labelled, compared, binned and carried elsewhere."""

from __future__ import annotations

import streamlit as st

from app.parts import page
from app.parts.runs_actions import actions, bin_and_import
from app.parts.runs_filters import filters
from app.parts.runs_table import read_further, runs_table, shelf
from app.parts.text import plain
from kvlab.errors import UserError
from kvlab.figures.words import byte_size


def main() -> None:
    page.heading("Runs", "Comparisons, evaluations and benchmarks of this folder. Choose rows to act on them.")
    kept = shelf()
    if kept.table.empty:
        st.info("Nothing is kept here yet. Make a comparison on the page **New run**, or import one.")
        bin_and_import()
        return
    wanted = filters(kept.table)
    found = kept.find(wanted)
    counts = kept.table["kind"].value_counts()
    kinds = ", ".join(f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items())
    size = kept.table["bytes"].sum()
    words = f"{len(found):,} shown of {kinds}" + (f", {byte_size(float(size))} on disk" if size else "")
    st.caption(
        plain(words) + "." + (" A word is looked for in titles, notes, tags and prompts." if wanted.text else "")
    )
    chosen = runs_table(found)
    actions(chosen)
    bin_and_import()
    if kept.unread:
        read_further(kept)


try:
    main()
except UserError as error:
    st.error(plain(str(error)))
