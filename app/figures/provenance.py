"""Which runs a figure is of, and what its picture therefore carries: methods, model, prompt, place and origin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import plotly.graph_objects as go
import streamlit as st

from app.session.open_runs import open_cached, runs_root
from kvlab.common.errors import UserError
from kvlab.report.caption import caption_of, place_of, provenance
from kvlab.report.views import Text
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run

RUN, COMPARISON = (
    re.compile(r"\brun (\S+) ·"),
    re.compile(r"^comparison (\S+) ·"),
)  # as kvlab.results.sources writes them
NOT_KEPT = ("job", "embed", "embed_options", "telling", "place")


def address() -> dict[str, str]:
    """What the address says of the view."""
    return {key: value for key, value in st.query_params.to_dict().items() if key not in NOT_KEPT}


def runs_of(source: str, asked: Mapping[str, str]) -> list[Run]:
    """The runs that a line of origin names; without any, the one that the address names."""
    if found := COMPARISON.match(source):
        parts = asked.get("comparison", "").split("/")
        names = parts if found[1] in parts else [found[1]]
        ids = [entry.run_id for name in names for entry in list_runs(runs_root(), comparison_id=name)]
    else:
        ids = RUN.findall(source) or ([asked["run"]] if "run" in asked and not source else [])
    runs = []
    for name in sorted(set(ids)):
        with suppress(UserError):
            runs.append(open_cached(runs_root() / name))
    return runs


def of_and_source(source: str, asked: Mapping[str, str], shown: object = None) -> tuple[str, str]:
    """What stands under a slide, and where it came from, for its notes."""
    runs, asked = runs_of(source, asked), _with_chosen(asked, shown)
    of = caption_of(runs, asked, shows_all(shown)) or source
    return of, "\n".join(filter(None, (source, provenance(runs))))


def for_picture(source: str, asked: Mapping[str, str], shown: object = None) -> str:
    """The line of origin under a picture, with the prompt's words, layer, head and words looked up."""
    place = place_of(runs_of(source, asked), _with_chosen(asked, shown), shows_all(shown))
    return " · ".join(filter(None, (source, place)))


def _with_chosen(asked: Mapping[str, str], shown: object) -> Mapping[str, str]:
    """The address, with the words that a text opened with where nobody chose any."""
    if not isinstance(shown, Text) or shown.chosen is None or asked.keys() & {"words", "span", "token"}:
        return asked
    return {**asked, "span": f"{shown.chosen[0]}-{shown.chosen[1]}"}


def shows_all(figure: object) -> Sequence[str]:
    """The parts of an address that a figure has an axis of: of those it shows all, not the one that the page is at."""
    axes = (figure.layout.meta or {}).get("go", {}).values() if isinstance(figure, go.Figure) else ()
    return ("layer", "head") if "layer" in axes or "head" in axes else ()
