"""What every page about a run begins with, and the histories of heads that several pages read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from app.base.text import plain
from app.components.payload import SentTexts
from app.figures.figure import forget_shown
from app.session.open_runs import stamp as stamp
from kvlab.analysis.lineage import Lineage, fold
from kvlab.analysis.lineage.tables import token_texts
from kvlab.common.errors import UserError
from kvlab.results.provenance import Provenance, of_run
from kvlab.trace.reader import Run

Masses = tuple[np.ndarray, np.ndarray]  # true mass of each token and mass of each slot, both (tokens,)
OPEN_HEADS, OPEN_TEXTS = 24, 8
OPEN_VECTORS = 4  # at 128k tokens and head_dim 128 a head's vectors take 64 MB


def heading(title: str, sentence: str) -> None:
    """The page's name and what one is looking at."""
    forget_shown()
    st.title(title)
    st.markdown(sentence)


def source(run: Run) -> Provenance:
    """Run, model and versions, for exported figures."""
    return of_run(run)


def file_name(run: Run, what: str) -> str:
    """A file name that says which run and figure it holds."""
    return f"{run.record.label}-{what}"


def explain_level(run: Run, what: str) -> None:
    """One sentence on what this run did not record, and how to get it."""
    level = run.record.level
    st.info(
        f"This run was recorded at level **{level}**, which leaves out {what}. Record it again with level **full**: "
        "on the page New run, or with `kvlab compare --level full`.",
        icon=":material/info:",
    )


def explain_status(run: Run) -> None:
    """One sentence where the run did not reach its end."""
    if run.record.status in ("cancelled", "running"):
        words = {"cancelled": "was cancelled", "running": "is still going"}
        st.info(f"This run {words[run.record.status]}: what it has recorded so far is shown.", icon=":material/info:")


def head_history(run: Run, layer: int, head: int) -> tuple[Lineage, pd.DataFrame, list[str]]:
    """Lineage, events and token texts of one layer and KV head."""
    return _head_history(run, *stamp(run), layer, head)


def head_events(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The events of one layer and KV head: of its history, what is there before it is folded."""
    return _head_events(run, *stamp(run), layer, head)


def head_steps(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The rows of `steps` of one layer and KV head."""
    return _head_steps(run, *stamp(run), layer, head)


def token_texts_of(run: Run, count: int) -> list[str]:
    """The texts of the first `count` tokens, the prompt's and those decoded."""
    return _texts(run, *stamp(run), count)


def masses_at(run: Run, layer: int, head: int, step: int) -> Masses | None:
    """True mass of each token and mass of each slot at a step, both (tokens,); None where they were not recorded."""
    place = int(np.searchsorted(head_history(run, layer, head)[0].steps, step))
    row, beside = divmod(place, run.attention_every)
    if beside:
        return None
    try:
        return run.attention_row(layer, head, row)
    except UserError:
        return None


def explain_no_masses(run: Run, layer: int, head: int, step: int) -> None:
    """One sentence on why `masses_at` of a run of level full has nothing to give here."""
    every = run.attention_every
    sentence = f"Attention rows were recorded at every {every} steps only: choose step {step - step % every}."
    try:
        run.attention_row(layer, head, 0)
    except UserError as error:
        sentence = str(error)
    st.info(plain(sentence), icon=":material/info:")


def unit_vectors(run: Run, what: str, layer: int, head: int) -> np.ndarray:
    """Unit keys or values (tokens, head_dim) of one layer and KV head.

    Raises:
        UserError: they were not recorded.
    """
    return _unit_vectors(run, *stamp(run), what, layer, head)


@st.cache_resource(max_entries=OPEN_HEADS, show_spinner=False)
def _head_history(_run: Run, path: str, written: int, layer: int, head: int) -> tuple[Lineage, pd.DataFrame, list[str]]:
    events = _head_events(_run, path, written, layer, head)
    lineage = fold(events, _head_steps(_run, path, written, layer, head))
    return lineage, events, _texts(_run, path, written, lineage.tokens)


@st.cache_resource(max_entries=OPEN_HEADS, show_spinner=False)
def _head_events(_run: Run, path: str, written: int, layer: int, head: int) -> pd.DataFrame:
    return _run.head_events(layer, head)


@st.cache_resource(max_entries=OPEN_HEADS, show_spinner=False)
def _head_steps(_run: Run, path: str, written: int, layer: int, head: int) -> pd.DataFrame:
    return _run.select("steps", layer, head)


@st.cache_resource(max_entries=OPEN_TEXTS, show_spinner=False)
def _texts(_run: Run, path: str, written: int, count: int) -> SentTexts:
    return SentTexts(token_texts(_run.tokens, count))


@st.cache_resource(max_entries=OPEN_VECTORS, show_spinner=False)
def _unit_vectors(_run: Run, path: str, written: int, what: str, layer: int, head: int) -> np.ndarray:
    return (_run.keys if what == "keys" else _run.values)(layer, head)[0]
