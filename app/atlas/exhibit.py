"""One exhibit of the atlas on a page: description, controls, figures, and the verdicts on the paper's claims."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.atlas.figure_cache import FigureCache
from app.atlas.measure_button import measure_button
from app.atlas.verdict_card import card_lines, verdict_card
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from app.figures.figure import collect, page_file, show
from app.navigation.place import pick_head, pick_layer, pick_step, pick_token
from app.session.url_state import in_url
from kvlab.atlas.cards import judge_on_each
from kvlab.atlas.exhibit import Choice, Control, Drawn, Exhibit, Needs
from kvlab.atlas.model_data import draw_shown
from kvlab.atlas.scorecard import Judged, verdicts_on_each
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.report.views import table_of
from kvlab.requests.measurement import command_line
from kvlab.results.shipped_folder import shipped_results
from kvlab.results.sources import Sources
from kvlab.views.base.export import Section
from kvlab.views.base.palette import Theme
from kvlab.views.base.template import QUIET
from kvlab.views.base.words import with_spaces

log = logging.getLogger(__name__)
CACHE_BYTES = 24_000_000  # of figures and frames as sent; about three times that in memory
PICKERS = {"layer": pick_layer, "head": pick_head, "step": pick_step, "token": pick_token}


def show_exhibit(exhibit: Exhibit, sources: Sources, paper: str) -> None:
    """The whole exhibit: description, controls, and its figures or the command that records their data."""
    st.header(f"{exhibit.number} · {plain(exhibit.title)}", anchor=False)
    shows, look_for = st.columns(2, gap="large")
    shows.markdown(f"**What is shown.** {exhibit.shows}")
    look_for.markdown(f"**What to look for.** {exhibit.look_for}")
    choice = controls(exhibit, sources)
    try:
        drawn = draw(exhibit, sources, choice, page_theme())
    except UserError as error:
        st.error(plain(str(error)))
        return
    except Exception as error:  # the rest of the page must not fail with the exhibit
        st.error(plain(describe_failure(exhibit, error)), icon=":material/error:")
        return
    if isinstance(drawn, Needs):
        needs(drawn, exhibit.key)
        return
    wanted = next((panel.wanted for panel in drawn if panel.wanted is not None), None)
    if wanted is not None:
        here, other = (model_title(model) for model in (sources.measured_model, drawn[0].model))
        st.warning(
            plain(f"The figures below were measured on {other}, and not on {here}: each has a badge that says so."),
            icon=":material/warning:",
        )
        needs(wanted, exhibit.key)
    judged = _judged(exhibit, sources)
    for panel in drawn:
        figure(exhibit, panel, sources.measured_model, judged)
    page_file(f"{paper}, {exhibit.number}: {exhibit.title}", f"{exhibit.shows} {exhibit.look_for}")


def _judged(exhibit: Exhibit, sources: Sources) -> list[Judged]:
    """The exhibit's claims on every model; none if they cannot be judged, which is no reason to hide its figures."""
    try:
        return judge_on_each(exhibit, sources)
    except Exception as error:
        describe_failure(exhibit, error)
        return []


def controls(exhibit: Exhibit, sources: Sources) -> Choice:
    """The values of the exhibit's controls; pickers of layers, heads, steps and tokens need a run."""
    names: Sequence[Control] = exhibit.controls if sources.run is not None and sources.run.memory.size else ()
    chosen: dict[str, int | None] = {}
    for name in names:
        assert sources.run is not None
        chosen[name] = PICKERS[name](sources.run)
    count = len(exhibit.entries)
    places = iter(st.columns([1] * count + [max(0.5, 6 - count)])[:count])
    numbers = []
    for entry in exhibit.entries:
        with next(places):
            value = st.number_input(
                entry.label,
                entry.least,
                entry.most,
                entry.default,
                **in_url(entry.name),
                help=entry.explanation or None,
            )
        numbers.append((entry.name, float(value)))
    return Choice(**chosen, numbers=tuple(numbers))  # type: ignore[arg-type]  # each field by its name, of its type


def draw(exhibit: Exhibit, sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """The exhibit's figures, from the cache (`FigureCache`).

    Raises:
        UserError: what they need was not recorded.
    """

    def now() -> tuple[Drawn, ...] | Needs:
        return draw_shown(exhibit, sources, choice, theme, shipped_results())

    with st.spinner("Drawing"):
        return _cache().get((exhibit.key, repr(choice), theme), exhibit.seen(sources), now)


@st.cache_resource(show_spinner=False)
def _cache() -> FigureCache[tuple[Drawn, ...] | Needs]:
    return FigureCache(CACHE_BYTES, size=_bytes, is_useful=lambda drawn: isinstance(drawn, tuple))


def _bytes(drawn: tuple[Drawn, ...] | Needs) -> int:
    """Bytes of figures, as JSON, and of their frames."""
    panels = drawn if isinstance(drawn, tuple) else ()
    return sum(len(panel.figure.to_json()) + int(panel.frame.memory_usage(deep=True).sum()) for panel in panels)


def describe_failure(exhibit: Exhibit, error: Exception) -> str:
    """One sentence on an exhibit that could not be drawn; the traceback is logged."""
    log.error("%s could not be drawn", exhibit.key, exc_info=error)
    message = " ".join(str(error).split())
    what = type(error).__name__ + (f": {shorten(message, 160)}" if message else "")
    return f"This exhibit failed with an error ({what}). This is a bug in kvlab; the server's log has the traceback."


def needs(missing: Needs, key: str) -> None:
    """Why there is no figure yet, the command that records its data, and a button that queues it."""
    st.info(plain(missing.sentence) + " This command records the data:", icon=":material/info:")
    if missing.measurement:
        st.code(command_line(missing.measurement), language="bash", wrap_lines=True)
        measure_button(missing.measurement, key)


def figure(exhibit: Exhibit, drawn: Drawn, model: str, judged: Sequence[Judged]) -> None:
    """One figure with its export menu, its claim, the paper's values in grey, and its source.

    `model` is in view; `judged` are the exhibit's claims on every model.
    """
    key = f"{exhibit.paper}-{exhibit.slug}-{drawn.name}"
    show(drawn.figure, drawn.frame, drawn.caption, key, key, drawn.origin)
    each = verdicts_on_each(judged, drawn.claim.paper) if drawn.claim else ""
    collect(key, Section(drawn.figure, drawn.caption, str(drawn.origin), card_lines(drawn.claim, drawn.model, each)))
    verdict_card(exhibit, drawn, key, model, each)
    if drawn.grey is not None and len(drawn.grey):
        grey(drawn.grey, f"{key}-grey")
    if drawn.further and drawn.further.measurement:
        st.caption(plain(drawn.further.sentence))
        st.code(command_line(drawn.further.measurement), language="bash", wrap_lines=True)
    st.caption(f":material/folder_open: {plain(str(drawn.origin))}")


def grey(values: pd.DataFrame, key: str) -> None:
    """A table of the paper's values, in grey as they were not measured here.

    A text that is equal in every row, such as the model, is in the line above.
    """
    texts = [name for name in values if not pd.api.types.is_numeric_dtype(values[name])]
    same = [name for name in texts if len(values) > 1 and values[name].nunique(dropna=False) == 1]
    setting = ", ".join(str(values[name].iloc[0]) for name in same if str(values[name].iloc[0]).strip())
    words = f"The paper's own values{f' ({setting})' if setting else ''}, on its own models:"
    left = values.drop(columns=same).rename(columns=with_spaces)
    # Streamlit shows a missing number as None, so such columns become text.
    gaps = [name for name in left.select_dtypes("number") if left[name].isna().any()]
    left = left.assign(**{name: [_printed(value) for value in left[name]] for name in gaps})
    show_title(Offer("Values printed in the paper", lambda: table_of(left), source=words.rstrip(":")), key)
    st.caption(plain(words))
    styled = left.style.set_properties(color=QUIET[page_theme()])
    styled = styled.format(_printed, subset=left.select_dtypes("number").columns)
    st.dataframe(styled, hide_index=True, key=key, alt="Values printed in the paper")


def _printed(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:,.6g}"
