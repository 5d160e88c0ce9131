"""The rows of all evaluations, and of all benchmarks, in the folder of runs."""

from __future__ import annotations

from typing import Literal

import pandas as pd
import streamlit as st

from app.navigation.selection import runs_root
from kvlab.results.sources import Sources


def measured_rows(kind: Literal["evaluations", "benchmarks"]) -> pd.DataFrame:
    """All rows of this kind; read anew only when a file there is new."""
    sources = Sources(runs_root())
    return _rows(sources, kind, sources.stamp_of_results)


@st.cache_resource(max_entries=6, show_spinner=False)
def _rows(_sources: Sources, kind: str, stamp: tuple[str, ...]) -> pd.DataFrame:
    return getattr(_sources, kind)
