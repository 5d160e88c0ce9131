"""Runs: the table of comparisons, evaluations and benchmarks, with filters, labels, bin, export and import."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from app.run_views import page
from app.runs.actions import actions, bin_and_import
from app.runs.table import begin_reading, count_line, filters, runs_table, shelf
from kvlab.core.errors import UserError

MOST_PROBLEMS = 5


def main() -> None:
    page.heading("Runs", "Comparisons, evaluations and benchmarks in this folder. Select rows to act on them.")
    entries = shelf()
    for problem in entries.problems[:MOST_PROBLEMS]:
        text = problem.replace(f"{runs_root()}/", "")  # pages show no paths of the server
        st.warning(f"Not in the list: {plain(text)}", icon=":material/broken_image:")
    if more := len(entries.problems[MOST_PROBLEMS:]):
        st.caption(f"{more:,} more folders are not in the list; `kvlab doctor {runs_root().name}` lists them.")
    if entries.table.empty:
        st.info("There are no results yet. Start a comparison on the page **New**, or import one.")
        bin_and_import()
        return
    query = filters(entries.table)
    found = entries.find(query)
    count = count_line(entries.table, found)
    with st.container(key="runs-count"):
        st.caption(plain(count))
    chosen = runs_table(found, count, query)
    actions(chosen)
    bin_and_import()
    if entries.unread:
        begin_reading(entries)


try:
    main()
except UserError as error:
    st.error(plain(str(error)))
