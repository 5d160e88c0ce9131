"""Find the runs behind a figure and build the caption of its slide or picture: methods, model, prompt and place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import plotly.graph_objects as go

from app.session.open_runs import open_cached, runs_root
from app.session.url_state import params
from kvlab.common.errors import UserError
from kvlab.report.caption import place_of, provenance, what_of
from kvlab.report.views import Text
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run

# As kvlab.results.sources writes them.
RUN, COMPARISON = re.compile(r"\brun (\S+) ·"), re.compile(r"^comparison (\S+) ·")
TELLING, PLACE = "telling", "place"  # the story that is told, and its view
NOT_OF_THE_VIEW = ("job", "embed", "embed_options", TELLING, PLACE)


def view_query() -> dict[str, str]:
    """The URL parameters that describe the view."""
    return {key: value for key, value in params().items() if key not in NOT_OF_THE_VIEW}


def runs_of(source: str, query: Mapping[str, str]) -> list[Run]:
    """The runs that the source of a figure names; without a source, the one in the URL."""
    if match := COMPARISON.match(source):
        parts = query.get("comparison", "").split("/")
        names = parts if match[1] in parts else [match[1]]
        ids = [entry.run_id for name in names for entry in list_runs(runs_root(), comparison_id=name)]
    else:
        ids = RUN.findall(source) or ([query["run"]] if "run" in query and not source else [])
    runs = []
    for name in sorted(set(ids)):
        with suppress(UserError):
            runs.append(open_cached(runs_root() / name))
    return runs


def slide_caption(source: str, query: Mapping[str, str], shown: object = None) -> tuple[str, str]:
    """The caption of a slide, and its source for the notes."""
    runs, query = runs_of(source, query), _with_chosen(query, shown)
    caption = what_of(runs, query, axes_of(shown)) or source
    return caption, "\n".join(filter(None, (source, provenance(runs))))


def picture_source(source: str, query: Mapping[str, str], shown: object = None) -> str:
    """The source line of a picture, with prompt, layer, head and chosen words."""
    place = place_of(runs_of(source, query), _with_chosen(query, shown), axes_of(shown))
    return " · ".join(filter(None, (source, place)))


def _with_chosen(query: Mapping[str, str], shown: object) -> Mapping[str, str]:
    """The query, with the words that a text chose by default."""
    if not isinstance(shown, Text) or shown.chosen is None or query.keys() & {"words", "span", "token"}:
        return query
    return {**query, "span": f"{shown.chosen[0]}-{shown.chosen[1]}"}


def axes_of(figure: object) -> Sequence[str]:
    """`layer` and `head` for a figure that has an axis of them, and so shows all."""
    axes = (figure.layout.meta or {}).get("go", {}).values() if isinstance(figure, go.Figure) else ()
    return ("layer", "head") if "layer" in axes or "head" in axes else ()
