"""One exhibit of a paper: its claim and verdict, figures, the evidence of the verdict, and the paper's values.

Rendered figures are cached for all sessions, bounded in bytes; stale ones are redrawn in the background.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Literal, TypeVar

import pandas as pd
import streamlit as st

from app.base.links import RUN, from_url, link
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from app.figures.figure import collect, note, page_file, show
from app.navigation.place import pick_head, pick_layer, pick_step, pick_token
from app.papers.measure_button import measure_button
from app.session.url_state import in_url
from kvlab.common.formatting import model_title
from kvlab.common.lab import User, acting, acting_as
from kvlab.core.errors import UserError
from kvlab.papers.exhibit import Choice, Control, Drawn, Exhibit, Needs
from kvlab.papers.model_exhibits import OWN, draw_shown, measured_on, with_badge
from kvlab.papers.registry import PAPERS, find
from kvlab.papers.scorecard import Judged, judge_on_each, verdicts_on_each
from kvlab.papers.verdict_figure import caption_card, card_frame
from kvlab.papers.verdict_figure import verdict_card as card_figure
from kvlab.report.views import table_of
from kvlab.requests.measurement import command_line
from kvlab.results.shipped_folder import shipped, shipped_results
from kvlab.results.sources import Sources, SourceState
from kvlab.results.verdict import Claim, basis_sentences, verdict_sentence, what_would_change
from kvlab.views.base import QUIET, with_spaces
from kvlab.views.base.export import Section

V = TypeVar("V")
MAX_AGE_SECONDS = 60.0  # after which an outdated value is redrawn
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: V
    drawn_from: SourceState
    size: int
    drawn: float

    def is_outdated(self, state: SourceState) -> bool:
        return self.drawn_from.stamp != state.stamp and self.drawn_from.at < state.at


class FigureCache(Generic[V]):
    """Least-recently-used cache of at most `max_bytes`, keyed by content and `Seen.place` (what the user may see).

    Each value is drawn once, however many sessions wait for it. An outdated value is returned, and redrawn by a
    background thread that is idle half of the time; a caller waits for a new one only if a source of the old one was
    deleted or hidden, or if `is_useful` is false for it. A value newer than the caller's sources is returned as it is:
    otherwise a slow page would replace newer values by older ones.
    """

    def __init__(self, max_bytes: int, size: Callable[[V], int], is_useful: Callable[[V], bool]) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._size = size
        self._is_useful = is_useful
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._lock = threading.Lock()
        self._drawing: dict[Hashable, threading.Lock] = {}
        self._queued: set[Hashable] = set()
        self._queue: SimpleQueue[tuple[Hashable, SourceState, Callable[[], V], User]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def get(self, what: Hashable, state: SourceState, draw: Callable[[], V]) -> V:
        """The value, from `draw` if it is not cached. Errors of `draw` are raised and not cached."""
        key = (what, state.place)
        entry = self._find(key, state)
        if entry is None:
            with self._lock:
                turn = self._drawing.setdefault(key, threading.Lock())
            with turn:
                entry = self._find(key, state) or self._draw(key, state, draw)
        if entry.is_outdated(state) and time.monotonic() - entry.drawn >= MAX_AGE_SECONDS:
            with self._lock:
                is_queued = key in self._queued
                self._queued.add(key)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="figure-cache", daemon=True)
                    self._thread.start()
            if not is_queued:
                self._queue.put((key, state, draw, acting()))
        return entry.value

    def known(self, what: Hashable, state: SourceState) -> V | None:
        """The value if `get` would return it without drawing."""
        entry = self._find((what, state.place), state)
        return None if entry is None else entry.value

    def _find(self, key: Hashable, state: SourceState) -> _Entry[V] | None:
        """The entry, if it may be shown."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is None or not entry.is_outdated(state):
            return entry
        return entry if entry.drawn_from.names <= state.names and self._is_useful(entry.value) else None

    def _draw(self, key: Hashable, state: SourceState, draw: Callable[[], V]) -> _Entry[V]:
        try:
            value = draw()
            entry = _Entry(value, state, self._size(value), time.monotonic())
            with self._lock:
                self._drop(key)
                self._entries[key] = entry
                self.bytes += entry.size
                while self.bytes > self._max_bytes and len(self._entries) > 1:
                    self._drop(next(iter(self._entries)))
            return entry
        finally:
            with self._lock:
                self._drawing.pop(key, None)

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self.bytes -= entry.size if entry else 0

    def _work(self) -> None:
        """Draw what is queued, for the user who asked."""
        while True:
            key, state, draw, user = self._queue.get()
            begun = time.monotonic()
            try:
                with acting_as(user):
                    self._draw(key, state, draw)
            except Exception as error:  # the next page draws it, and shows the error
                log.error("%s could not be redrawn", key, exc_info=error)
                with self._lock:
                    self._drop(key)
            with self._lock:
                self._queued.discard(key)
            del draw  # it refers to runs
            time.sleep(time.monotonic() - begun)


BADGES: dict[str, tuple[Literal["green", "red", "gray"], str]] = {
    "holds": ("green", ":material/check_circle:"),
    "does not hold": ("red", ":material/cancel:"),
    "not enough to say": ("gray", ":material/help:"),
}
CACHE_BYTES = 24_000_000  # of figures and frames as sent; about three times that in memory
PICKERS = {"layer": pick_layer, "head": pick_head, "step": pick_step, "token": pick_token}


def show_exhibit(exhibit: Exhibit, sources: Sources, paper: str) -> None:
    """The whole exhibit: description, controls, and its figures or the command that records their data."""
    st.header(f"{exhibit.number} · {plain(exhibit.title)}", anchor=False)
    choice = controls(exhibit, sources)
    try:
        theme = page_theme()
        with st.spinner("Drawing"):
            drawn = _cache().get(
                (exhibit.key, repr(choice), theme),
                exhibit.source_state(sources),
                lambda: draw_shown(exhibit, sources, choice, theme, shipped_results()),
            )
    except UserError as error:
        st.error(plain(str(error)))
        return
    except Exception as error:  # the rest of the page must not fail with the exhibit
        st.error(plain(describe_failure(exhibit, error)), icon=":material/error:")
        return
    if isinstance(drawn, Needs):
        needs(drawn, exhibit.key)
        _describe(exhibit)
        return
    wanted = next((panel.wanted for panel in drawn if panel.wanted is not None), None)
    if wanted is not None:
        here, other = (model_title(model) for model in (sources.measured_model, drawn[0].model))
        st.caption(plain(f"These figures were measured on {other}, and not on {here}: each has a badge that says so."))
    try:
        judged = judge_on_each(exhibit, sources)
    except Exception as error:  # no reason to hide the figures
        describe_failure(exhibit, error)
        judged = []
    for place, panel in enumerate(drawn):
        figure(exhibit, panel, sources.measured_model, judged)
        if not place:
            _describe(exhibit)
    if wanted is not None:
        needs(wanted, exhibit.key)
    page_file(f"{paper}, {exhibit.number}: {exhibit.title}", f"{exhibit.shows} {exhibit.look_for}")


def _describe(exhibit: Exhibit) -> None:
    shows, look_for = st.columns(2, gap="large")
    shows.markdown(f"**What is shown.** {exhibit.shows}")
    look_for.markdown(f"**What to look for.** {exhibit.look_for}")


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
    if drawn.claim:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            colour, icon = BADGES[drawn.claim.verdict]
            st.badge(drawn.claim.verdict, color=colour, icon=icon)
            st.markdown(f"**The paper:** {plain(drawn.claim.paper)}", width="stretch")
    show(drawn.figure, drawn.frame, drawn.caption, key, key, drawn.origin)
    each = verdicts_on_each(judged, drawn.claim.paper) if drawn.claim else ""
    # The card as lines of text, for exports of the page.
    lines: tuple[str, ...] = ()
    if claim := drawn.claim:
        change = what_would_change(claim)
        lines = (
            f"The paper: {claim.paper}",
            verdict_sentence(claim, model_title(drawn.model)),
            claim.finding,
            *basis_sentences(claim),
            *([f"Model by model: {each}."] if each else []),
            *([f"What would change the verdict: {change}"] if change else []),
        )
    collect(key, Section(drawn.figure, drawn.caption, str(drawn.origin), lines))
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


def verdict_card(exhibit: Exhibit, drawn: Drawn, key: str, model: str, each: str) -> None:
    """Draw the card of the claim of `drawn`; without a claim nothing is drawn.

    `model` is the one in view; `each` has the verdicts on every model (`verdicts_on_each`).
    """
    claim = drawn.claim
    if claim is None:
        return
    with st.container(border=True, gap="small"):
        if claim.judged_at:
            # The verdict in one line, with a link to the exhibit that judges the claim.
            assert claim.judged_at
            other, slug = claim.judged_at.split("/")
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                link("papers", f"Judged on {find(other, slug).number}", paper=other, exhibit=slug, **from_url(RUN))
            note(verdict_sentence(claim, model_title(drawn.model)))
            return
        frame = card_frame(claim, *exhibit.number_of(drawn.name, claim))
        # The claim after the name of its paper, unless it begins with the name.
        paper = "" if exhibit.paper == "beyond" else PAPERS[exhibit.paper]
        title = claim.paper if not paper or claim.paper.startswith(paper) else f"{paper}: {claim.paper}"
        sentence = verdict_sentence(claim, model_title(drawn.model))
        if frame.empty:
            _words(claim, sentence, each, key)
            return
        left, right = st.columns([3, 2], gap="medium")
        with left:
            chart = card_figure(frame, page_theme(), title)
            if drawn.model not in ("", model):
                chart = with_badge(chart, measured_on(model_title(drawn.model)), page_theme())
            ships = shipped(drawn.model)
            # As text: a verdict is not about the run in view alone, and its slide is not named after it.
            source = ships.description if ships and claim.finding.startswith(OWN) else str(drawn.origin)
            marks = caption_card(frame)
            show(chart, frame, f"{sentence} {marks}", f"{key}-evidence", f"{key}-evidence", source, noted=marks)
        with right:
            _words(claim, sentence, each, key)


def _words(claim: Claim, sentence: str, each: str, key: str) -> None:
    st.markdown(f"**{plain(sentence)}**")
    if each:
        st.markdown(f"**Model by model.** {plain(each)}.")
    note(claim.finding)
    note(" ".join(basis_sentences(claim)))
    if change := what_would_change(claim):
        st.markdown(f"**What would change the verdict.** {plain(change)}")
    if claim.settle:
        measure_button(claim.settle, f"settle-{key}", is_whole=True)
