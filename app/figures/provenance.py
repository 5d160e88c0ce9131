"""Find the runs behind a figure and build its subject and provenance: methods, model, prompt and place."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import plotly.graph_objects as go

from app.session.open_runs import open_cached, runs_root
from app.session.url_state import params
from kvlab.core.errors import UserError
from kvlab.report.contents import place_of, provenance, slide_title, subject_of
from kvlab.report.views import Text
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run
from kvlab.views.base.provenance import FigureSource

# URL parameters of story mode: the story, and its current view
TELLING = "telling"
PLACE = "place"
NOT_OF_THE_VIEW = ("job", "embed", "embed_options", TELLING, PLACE)


def view_query() -> dict[str, str]:
    """The URL parameters that describe the view."""
    return {key: value for key, value in params().items() if key not in NOT_OF_THE_VIEW}


def runs_of(source: FigureSource, query: Mapping[str, str]) -> list[Run]:
    """The runs of a source; if it is empty, the run that the address names."""
    if not source:
        ids = {query["run"]} if "run" in query else set()
    elif isinstance(source, str):
        ids = set()
    elif source.comparison_id:
        parts = query.get("comparison", "").split("/")
        names = parts if source.comparison_id in parts else [source.comparison_id]
        ids = {entry.run_id for name in names for entry in list_runs(runs_root(), comparison_id=name)}
    else:
        ids = source.all_run_ids
    runs = []
    for name in sorted(ids):
        with suppress(UserError):
            runs.append(open_cached(runs_root() / name))
    return runs


def slide_words(
    title: str, source: FigureSource, query: Mapping[str, str], shown: object = None
) -> tuple[str, str, str]:
    """The title of a slide, which stands alone, its subject, and the provenance for its notes."""
    runs = runs_of(source, query)
    query, axes = _query_and_axes(query, shown)
    text = str(source)
    subject = subject_of(runs, query, axes) or text
    return slide_title(title, runs, query, axes), subject, "\n".join(filter(None, (text, provenance(runs))))


def picture_source(source: FigureSource, query: Mapping[str, str], shown: object = None) -> str:
    """The provenance under a picture, with the prompt, layer, head and the words looked up."""
    place = place_of(runs_of(source, query), *_query_and_axes(query, shown))
    return " · ".join(filter(None, (str(source), place)))


def _query_and_axes(query: Mapping[str, str], shown: object) -> tuple[Mapping[str, str], Sequence[str]]:
    """The address, with the words that a text opened with if none are chosen in it, and the figure's axes.

    Axes are query parameters of which the figure shows all values, not the page's choice.
    """
    if isinstance(shown, Text) and shown.chosen is not None and not query.keys() & {"words", "span", "token"}:
        query = {**query, "span": f"{shown.chosen[0]}-{shown.chosen[1]}"}
    axes = (shown.layout.meta or {}).get("go", {}).values() if isinstance(shown, go.Figure) else ()
    return query, ("layer", "head") if "layer" in axes or "head" in axes else ()
