"""Figures, tables and texts that a page has shown, in order: a slide of the whole view takes the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

from kvlab.report.views import Shown
from kvlab.results.provenance import FigureSource

SEEN = "seen_on_page"


@dataclass(frozen=True)
class Seen:
    """A chart, table or text under its title; `make` is called when a slide is made of it."""

    title: str
    make: Callable[[], go.Figure | Shown]
    reading: str = ""
    source: FigureSource = ""


def note_seen(key: str, seen: Seen) -> None:
    """Take in what is shown; what is drawn again under its key keeps its place."""
    st.session_state.setdefault(SEEN, {})[key] = seen


def all_seen() -> list[Seen]:
    """All that the page has shown so far."""
    return list(st.session_state.get(SEEN, {}).values())


def forget_seen() -> None:
    """Called where a page begins."""
    st.session_state[SEEN] = {}
