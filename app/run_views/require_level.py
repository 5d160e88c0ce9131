"""The run of a page that needs more than was recorded of every run: what is missing is said in its place."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.navigation.selection import Prefer, current_run
from app.run_views import page, view
from app.session.open_runs import runs_root
from kvlab.analysis.comparison import board as analysis
from kvlab.analysis.comparison.verdict import NO_REFERENCE
from kvlab.common.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import load_labels


def full_run(prefer: Prefer, missing: str) -> Run | None:
    """The run that is looked at, recorded in full; None, with a sentence, where `missing` was left out of it."""
    run = current_run(prefer)
    if run is None:
        return None
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, missing)
        return None
    return None if view.nothing_recorded(run) else run


def run_with_steps(prefer: Prefer = "any") -> Run | None:
    """The run that is looked at, with its steps; None, with a sentence, where none were recorded."""
    run = current_run(prefer)
    if run is None:
        return None
    page.explain_status(run)
    if run.steps.empty:
        page.explain_level(run, "everything this page shows")
        return None
    return run


CLEAR_REFERENCE = f"{NO_REFERENCE[0].upper()}{NO_REFERENCE[1:]}."


def warn_of_reference(runs: Sequence[Run]) -> None:
    """The warning, where an answer is known for the comparison and its full cache's text lacks it."""
    try:
        wanted = analysis.expected_answer(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError:
        return  # Compare says that the labels are damaged
    if wanted is not None and _fails(runs, tuple(page.stamp(run) for run in runs), wanted.answers):
        warning()


def warning() -> None:
    st.warning(CLEAR_REFERENCE, icon=":material/warning:")


@st.cache_data(max_entries=64, show_spinner=False)
def _fails(_runs: Sequence[Run], stamps: tuple, answers: tuple[str, ...]) -> bool:
    return analysis.judge_any(analysis.reference_texts(_runs), answers).kind in ("nearly", "wrong")
