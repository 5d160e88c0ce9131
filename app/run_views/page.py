"""The parts that pages about a run share: heading, figures with their source, explanations, and cached histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.components.payload import SentTexts
from app.figures.figure import begin_page, show
from app.session.open_runs import BY_STAMP
from app.session.url_state import in_url
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views import timeline
from kvlab.views.base.head_map import Place, caption_focus, takes_whole_width
from kvlab.views.base.provenance import Provenance, of_run
from kvlab.views.frames.lineage import Lineage, fold, token_texts

OPEN_HEADS = 24
OPEN_TEXTS = 8
OPEN_VECTORS = 4  # 64 MB per head at 128k tokens and head_dim 128


def source(run: Run) -> Provenance:
    """Run, model and versions, for exported figures."""
    return of_run(run)


def heading(title: str, description: str) -> None:
    """Begin a page: its title and what it shows."""
    begin_page()
    st.title(title)
    st.markdown(description)


def verdict(sentence: str) -> None:
    """The first line below the title: what the page found in the run in view."""
    st.markdown(f"#### {plain(sentence)}")


def file_name(run: Run, what: str) -> str:
    """A file name with the run and the figure."""
    return f"{run.record.label}-{what}"


def show_figure(
    run: Run, figure: go.Figure, frame: pd.DataFrame, caption: str, key: str, name: str, focus: Place | None = None
) -> bool:
    """As `app.figures.figure.show`, with the run's source and `name` as the file name.

    `focus` is the head that a map outlines.
    """
    return show(figure, frame, caption_focus(caption, figure, focus), key, file_name(run, name), source(run))


def explain_level(run: Run, what: str) -> None:
    """One sentence on what this run did not record, and how to record it."""
    st.info(
        f"This run was recorded at level **{run.record.level}**, without {what}. Record it again at level **full**: on "
        "the page New, or with `kvlab compare --level full`.",
        icon=":material/info:",
    )


def explain_status(run: Run) -> None:
    """One sentence on a run that was cancelled or is still running."""
    if run.record.status in ("cancelled", "running"):
        words = {"cancelled": "was cancelled", "running": "is still running"}[run.record.status]
        st.info(f"This run {words}: what it has recorded so far is shown.", icon=":material/info:")


def map_columns(run: Run, widths: Sequence[int] = (1, 1)) -> list[DeltaGenerator]:
    """Two columns for figures with a map of layers and heads; below each other if the map takes the whole width."""
    if takes_whole_width(run.record.model.num_hidden_layers - len(run.record.sliding_layers)):
        return [st.container(), st.container()]
    return st.columns(widths, gap="large")


def metrics(values: Iterable[tuple[str, str, str]]) -> None:
    """A row of numbers, each with label and tooltip. Columns of equal width would cut long ones."""
    with st.container(horizontal=True, gap="large"):
        for label, value, explanation in values:
            st.metric(label, "–" if value == "not recorded" else value, help=explanation, width="content")


def reads_all(run: Run, layers: Sequence[int], limit: int, label: str, key: str = "read") -> bool:
    """Whether to read the vectors of all tokens and heads in these layers; over `limit`, a switch decides."""
    vectors = run.record.prompt_tokens * len(layers) * run.record.model.num_key_value_heads
    return vectors <= limit or st.toggle(label.format(vectors=vectors), **in_url(key))


_cache_heads = partial(st.cache_resource, max_entries=OPEN_HEADS, show_spinner=False, hash_funcs=BY_STAMP)


@_cache_heads()
def head_history(run: Run, layer: int, head: int) -> tuple[Lineage, pd.DataFrame, list[str]]:
    """Lineage, events and token texts of one layer and KV head."""
    events = head_events(run, layer, head)
    lineage = fold(events, head_steps(run, layer, head))
    return lineage, events, token_texts_of(run, lineage.tokens)


@_cache_heads()
def head_events(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The events of one layer and KV head, which are available before its history is folded."""
    return run.head_events(layer, head)


@_cache_heads()
def head_steps(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The rows of `steps` of one layer and KV head."""
    return run.select("steps", layer, head)


@st.cache_resource(max_entries=OPEN_TEXTS, show_spinner=False, hash_funcs=BY_STAMP)
def token_texts_of(run: Run, count: int) -> SentTexts:
    """The texts of the first `count` tokens, of the prompt and decoded."""
    return SentTexts(token_texts(run.tokens, count))


@st.cache_resource(max_entries=OPEN_VECTORS, show_spinner=False, hash_funcs=BY_STAMP)
def unit_vectors(run: Run, what: str, layer: int, head: int) -> np.ndarray:
    """Unit keys or values (tokens, head_dim) of one layer and KV head.

    Raises:
        UserError: they were not recorded.
    """
    return (run.keys if what == "keys" else run.values)(layer, head)[0]


def masses_at(run: Run, layer: int, head: int, step: int) -> timeline.Masses | None:
    """`kvlab.views.timeline.masses_at`."""
    return timeline.masses_at(run, head_history(run, layer, head)[0], layer, head, step)


def explain_no_masses(run: Run, layer: int, head: int, step: int) -> None:
    """One sentence on why `masses_at` is None for a run of level full."""
    every = run.attention_every
    sentence = f"Attention rows were recorded at every {every} steps only: choose step {step - step % every}."
    try:
        run.attention_row(layer, head, 0)
    except UserError as error:
        sentence = str(error)
    st.info(plain(sentence), icon=":material/info:")
