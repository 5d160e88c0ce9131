"""The run of a page that requires a record level, with a sentence if it was recorded at a lower one."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.navigation.selection import Prefer, current_run, current_sources
from app.run_views import page, view
from app.session.open_runs import BY_STAMP, runs_root
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import load_labels
from kvlab.views.frames import board as analysis
from kvlab.views.frames.verdict import NO_REFERENCE


def full_run(prefer: Prefer, missing: str) -> Run | None:
    """The run to show, if recorded at level full; None, with a sentence, if it lacks `missing`."""
    run = current_run(prefer)
    if run is None:
        return None
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, missing)
        return None
    return None if view.nothing_recorded(run) else run


def run_with_steps(prefer: Prefer = "any") -> tuple[Run, tuple[Run, ...]] | None:
    """The run to show, if it has steps, and all runs of its comparison; None, with a sentence, if it has none."""
    sources = current_sources(prefer)
    run = sources.run
    if run is None:
        return None
    page.explain_status(run)
    if run.steps.empty:
        page.explain_level(run, "everything this page shows")
        return None
    return run, tuple(sources.runs)


CLEAR_REFERENCE = f"{NO_REFERENCE[0].upper()}{NO_REFERENCE[1:]}."


def warn_of_reference(runs: Sequence[Run]) -> None:
    """Warn if the expected answer is missing in the full cache's own text."""
    try:
        wanted = analysis.expected_answer(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError:
        return  # the page Compare shows the error
    if wanted is not None and _fails(runs, wanted.answers):
        warn_reference_fails()


def warn_reference_fails() -> None:
    """Warn that the full cache itself fails the question."""
    st.warning(CLEAR_REFERENCE, icon=":material/warning:")


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=BY_STAMP)
def _fails(runs: Sequence[Run], answers: tuple[str, ...]) -> bool:
    return analysis.judge_any(analysis.reference_texts(runs), answers).kind in ("nearly", "wrong")
