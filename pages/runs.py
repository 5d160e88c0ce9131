"""Runs: all that is kept in the folder, found, labelled, compared, binned and carried elsewhere."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from app.run_views import page
from app.runs.actions import actions, bin_and_import
from app.runs.filters import filters
from app.runs.table import begin_reading, count_line, runs_table, shelf
from kvlab.common.errors import UserError
from kvlab.library.find import describe_search

MOST_PROBLEMS = 5


def main() -> None:
    page.heading("Runs", "Comparisons, evaluations and benchmarks of this folder. Choose rows to act on them.")
    kept = shelf()
    for problem in kept.problems[:MOST_PROBLEMS]:
        here = problem.replace(f"{runs_root()}/", "")  # a page tells no paths of the server
        st.warning(f"Left out of the list: {plain(here)}", icon=":material/broken_image:")
    if more := len(kept.problems[MOST_PROBLEMS:]):
        st.caption(f"{more:,} more folders are left out: `kvlab doctor {runs_root().name}` names them all.")
    if kept.table.empty:
        st.info("Nothing is kept here yet. Make a comparison on the page **New run**, or import one.")
        bin_and_import()
        return
    wanted = filters(kept.table)
    found = kept.find(wanted)
    count = count_line(kept.table, found)
    with st.container(key="runs-count"):
        st.caption(plain(count))
    chosen = runs_table(found, count, describe_search(wanted))
    actions(chosen)
    bin_and_import()
    if kept.unread:
        begin_reading(kept)


try:
    main()
except UserError as error:
    st.error(plain(str(error)))
