"""Find the runs behind a figure and build its caption: methods, model, prompt, place and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import plotly.graph_objects as go
import streamlit as st

from app.session.open_runs import open_cached, runs_root
from kvlab.common.errors import UserError
from kvlab.report.caption import place_of, provenance, what_of
from kvlab.report.views import Text
from kvlab.results.provenance import FigureSource
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run

NOT_KEPT = ("job", "embed", "embed_options", "telling", "place")


def address() -> dict[str, str]:
    """The query parameters that name the view."""
    return {key: value for key, value in st.query_params.to_dict().items() if key not in NOT_KEPT}


def runs_of(source: FigureSource, asked: Mapping[str, str]) -> list[Run]:
    """The runs of a source; if it is empty, the run that the address names."""
    if not source:
        ids = {asked["run"]} if "run" in asked else set()
    elif isinstance(source, str):
        ids = set()
    elif source.comparison_id:
        parts = asked.get("comparison", "").split("/")
        names = parts if source.comparison_id in parts else [source.comparison_id]
        ids = {entry.run_id for name in names for entry in list_runs(runs_root(), comparison_id=name)}
    else:
        ids = source.all_run_ids
    runs = []
    for name in sorted(ids):
        with suppress(UserError):
            runs.append(open_cached(runs_root() / name))
    return runs


def of_and_source(source: FigureSource, asked: Mapping[str, str], shown: object = None) -> tuple[str, str]:
    """The caption under a slide, and the provenance for its notes."""
    runs, asked = runs_of(source, asked), _with_chosen(asked, shown)
    text = str(source)
    of = what_of(runs, asked, shows_all(shown)) or text
    return of, "\n".join(filter(None, (text, provenance(runs))))


def for_picture(source: FigureSource, asked: Mapping[str, str], shown: object = None) -> str:
    """The provenance under a picture, with the prompt, layer, head and the words looked up."""
    place = place_of(runs_of(source, asked), _with_chosen(asked, shown), shows_all(shown))
    return " · ".join(filter(None, (str(source), place)))


def _with_chosen(asked: Mapping[str, str], shown: object) -> Mapping[str, str]:
    """The address, with the words that a text opened with if none are chosen in it."""
    if not isinstance(shown, Text) or shown.chosen is None or asked.keys() & {"words", "span", "token"}:
        return asked
    return {**asked, "span": f"{shown.chosen[0]}-{shown.chosen[1]}"}


def shows_all(figure: object) -> Sequence[str]:
    """Query parameters that are an axis of the figure: it shows all their values, not the page's choice."""
    axes = (figure.layout.meta or {}).get("go", {}).values() if isinstance(figure, go.Figure) else ()
    return ("layer", "head") if "layer" in axes or "head" in axes else ()
