"""The result of a comparison's job: its outcome in a sentence, and the texts of its runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.figures.export_menu import Offer, show_title
from app.navigation.selection import open_cached, runs_root
from app.queue.race import READING, as_passages, show_race
from app.session.open_runs import BY_STAMP
from kvlab.analysis.comparison.outcome import batch_outcome, outcome
from kvlab.analysis.comparison.own_texts import own_texts
from kvlab.core.errors import UserError
from kvlab.jobs import JobStatus
from kvlab.requests.compare import CompareRequest
from kvlab.requests.live_texts import LiveTexts
from kvlab.trace.catalogue import RunEntry, list_repeats, list_runs
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels, load_labels
from kvlab.views.base.provenance import of_comparison
from kvlab.views.frames.repeats import build_batch, repeat_table


def show_outcome(status: JobStatus, request: CompareRequest) -> None:
    """The outcome in a sentence and the texts of a job that has ended; nothing if it recorded no readable run."""
    try:
        if request.is_batch:
            _batch(request.batch or status.job_id)
        else:
            _single(status.job_id)
    except UserError as error:  # a run that is damaged, or was removed in the meantime
        st.warning(plain(str(error)))


def _single(comparison_id: str) -> None:
    runs = _opened(list(reversed(list_runs(runs_root(), comparison_id=comparison_id))))
    if runs:
        _sentence(_outcome(runs, load_labels(runs_root(), comparison_id)))
        texts = _texts(runs)
        show_title(Offer("The text of each run", lambda: as_passages(texts), READING, of_comparison(runs)), "race")
        show_race(texts)


def _batch(name: str) -> None:
    tables = []
    for entry in list_repeats(runs_root(), name):
        if runs := _opened(entry.runs):
            tables.append(_repeat(runs, load_labels(runs_root(), entry.comparison_id)))
    if tables:
        _sentence(batch_outcome(build_batch(tables)))


def _sentence(words: str) -> None:
    if words:
        st.markdown(f"**{plain(words)}**")


def _opened(entries: Sequence[RunEntry]) -> list[Run]:
    return [open_cached(Path(runs_root()) / entry.run_id) for entry in entries]


@st.cache_data(max_entries=16, show_spinner="Scoring the runs", hash_funcs=BY_STAMP)
def _outcome(runs: Sequence[Run], labels: Labels) -> str:
    return outcome(runs, labels)


@st.cache_data(max_entries=16, show_spinner=False, hash_funcs=BY_STAMP)
def _texts(runs: Sequence[Run]) -> LiveTexts:
    return own_texts(runs)


@st.cache_data(max_entries=512, show_spinner="Scoring the prompts", hash_funcs=BY_STAMP)
def _repeat(runs: Sequence[Run], labels: Labels) -> pd.DataFrame:
    return repeat_table(runs, labels)
