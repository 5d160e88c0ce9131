"""The warning over whatever ranks runs: the full cache itself does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.run_views import page
from app.session.open_runs import runs_root
from kvlab.analysis.comparison import board as analysis
from kvlab.analysis.comparison.verdict import NO_REFERENCE
from kvlab.common.errors import UserError
from kvlab.trace.labels import load_labels
from kvlab.trace.reader import Run

CLEAR_REFERENCE = f"{NO_REFERENCE[0].upper()}{NO_REFERENCE[1:]}."


def warn_of_reference(runs: Sequence[Run]) -> None:
    """The warning, where an answer is known for the comparison and its full cache's text lacks it."""
    try:
        wanted = analysis.wanted(runs, load_labels(runs_root(), runs[0].record.comparison_id))
    except UserError:
        return  # Compare says that the labels are damaged
    if wanted is not None and _fails(runs, tuple(page.stamp(run) for run in runs), wanted.answers):
        warning()


def warning() -> None:
    st.warning(CLEAR_REFERENCE, icon=":material/warning:")


@st.cache_data(max_entries=64, show_spinner=False)
def _fails(_runs: Sequence[Run], stamps: tuple, answers: tuple[str, ...]) -> bool:
    return analysis.judge_any(analysis.reference_texts(_runs), answers).kind in ("nearly", "wrong")
