"""Views beside the cache wall, which share its run, layer, head, step and token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from app.base.theme import theme as page_theme
from app.compare.board import board_of
from app.components.tokentext import along_text, difference_classes, tokentext
from app.figures.figure import note, show
from app.run_views import page, view
from app.session.open_runs import BY_STAMP
from app.session.url_state import set_page_param, url_value
from app.wall.edits import edit_section
from kvlab.analysis.comparison import difference
from kvlab.figures import board as board_figures
from kvlab.figures import compare as compare_figures
from kvlab.figures import difference as difference_figures
from kvlab.figures import lineage as river
from kvlab.trace.reader import Run
from kvlab.views import attention as attention_figures
from kvlab.views.base.provenance import join_sources, of_comparison
from kvlab.views.frames import compare
from kvlab.views.frames.lineage import lineage_tree, merged_slots

KEY = "wall-panes"
PANES_PARAM = "panes"
DEFAULT = ("text", "attention")
SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class Place:
    """What all views look at. `other` is the run of a difference; `token` a position, None if none is chosen."""

    run: Run
    other: Run | None
    runs: Sequence[Run]
    layer: int
    head: int
    step: int
    token: int | None

    @property
    def name(self) -> str:
        """The layer and head."""
        return f"layer {self.layer}, head {self.head}"


def docked_panes(place: Place) -> None:
    """A choice of views, kept in the URL, and the chosen ones side by side."""
    requested = url_value(PANES_PARAM)
    names = list(DEFAULT) if requested is None else [name for name in PANES if name in requested.split(",")]
    st.session_state[KEY] = names
    label = "Views beside the wall"
    st.pills(label, list(PANES), selection_mode="multi", format_func=LABELS.__getitem__, key=KEY, on_change=remember)
    for first in range(0, len(names), SIDE_BY_SIDE):
        row = names[first : first + SIDE_BY_SIDE]
        for column, name in zip(st.columns(len(row), gap="large"), row, strict=True):
            with column:
                PANES[name](place)


def remember() -> None:
    """Put the chosen views into the URL."""
    set_page_param(PANES_PARAM, ",".join(st.session_state[KEY]) or "none")


def text_pane(place: Place) -> None:
    """The text with the state of every token in this head; of two runs, which of them holds it."""
    if place.other is None:
        view.head_text(place.run, place.layer, place.head, place.step, "wall-text", shown=place.token)
        return
    kept = [
        difference.kept_at(run, place.step, departures(run)[place.layer, place.head][None, None])
        for run in (place.run, place.other)
    ]
    texts = page.token_texts_of(place.run, difference.tokens_read(place.run))
    codes = difference.classes(kept[0], kept[1], 0, 0, len(texts))
    hues = difference_figures.hues_of(place.run.record.method, place.other.record.method)
    tokentext(
        texts,
        codes,
        difference_classes(hues),
        identity=str(place.run.path),
        key="wall-difference-text",
        title=f"Tokens that A ({place.run.record.label}) and B ({place.other.record.label}) hold, {place.name}",
        source=join_sources(page.source(place.run), page.source(place.other)),
        scroll=place.token,
    )


def attention_pane(place: Place) -> None:
    """The attention of this head at this step, along the text."""
    masses = page.masses_at(place.run, place.layer, place.head, place.step)
    if masses is None:
        page.explain_no_masses(place.run, place.layer, place.head, place.step)
        return
    lineage, _, texts = page.head_history(place.run, place.layer, place.head)
    read = int((lineage.birth <= place.step).sum())
    true, slot = (np.asarray(mass[:read], np.float32) for mass in masses)
    frame = pd.DataFrame({"position": np.arange(read), "text": texts[:read], "true": true, "slot": slot})
    figure = along_text(attention_figures.attention_along_text(frame, page_theme()), place=place.name)
    caption = attention_figures.caption_attention_along_text(frame)
    page.show_figure(place.run, figure, frame, caption, "wall-attention", f"attention-step-{place.step}")


def lineage_pane(place: Place) -> None:
    """The tokens that flowed into the slot of the chosen token, or into the slot with most votes."""
    lineage, events, texts = page.head_history(place.run, place.layer, place.head)
    merged = merged_slots(lineage, place.step)
    owner = -1 if place.token is None or place.token >= lineage.tokens else int(lineage.owners(place.step)[place.token])
    slot = owner if owner in merged else next(iter(merged), None)
    if slot is None:
        st.caption(f"No slot of {place.name} holds more than one token at this step.")
        return
    tree = lineage_tree(lineage, events, texts, slot, place.step)
    caption = river.caption_merge_sankey(tree)
    if tree.empty:
        note(caption)
        return
    figure = river.merge_sankey(tree, slot, texts[slot], page_theme())
    page.show_figure(place.run, figure, tree, caption, "wall-lineage", f"slot-{slot}")


def kl_pane(place: Place) -> None:
    """KL from the full cache along the continuation: of all runs, or of the two of a difference."""
    if place.other is not None:
        kl_of_two(place.run, place.other)
        return
    along = compare.along_text(place.runs)
    if not compare.has_kl(along):
        st.info("These runs have no KL from the full cache: it requires a finished forced continuation.")
        return
    figure = compare_figures.kl_along_text(along, page_theme())
    caption = compare_figures.caption_kl_along_text(along)
    show(figure, along, caption, "wall-kl", "kl-along-text", of_comparison(place.runs))


def kl_of_two(a: Run, b: Run) -> None:
    """KL of both runs, and where their own texts diverge."""
    part = difference.divergences(a, b)
    facts = {
        "A diverges from the full cache": part["a"],
        "B diverges from it": part["b"],
        "A and B diverge": part["each_other"],
    }
    page.metrics(
        (label, "never" if token is None else f"at token {token}", "In their own continuations.")
        for label, token in facts.items()
    )
    table = difference.kl_of_both(a, b)
    labels = (a.record.label, b.record.label)
    hues = difference_figures.hues_of(a.record.method, b.record.method)
    figure = difference_figures.kl_of_both(table, labels, page_theme(), hues)
    figure = along_text(figure, offset=a.record.prompt_tokens - 1)
    changed = difference_figures.caption_hues(a.record.method, b.record.method)
    caption = difference_figures.caption_kl_of_both(table).within(after=changed)
    show(figure, table, caption, "wall-kl-of-two", "kl-of-both", join_sources(page.source(a), page.source(b)))


def board_pane(place: Place) -> None:
    """Answers of all runs, judged."""
    board = board_of(place.runs)
    if board is None or board.frame.empty:
        st.info("This comparison has no expected answer: enter one on the page Compare.", icon=":material/info:")
        return
    figure = board_figures.board(board.frame, page_theme())
    caption = board_figures.caption_board(board.frame)
    show(figure, board.frame, caption, "wall-board", "board", of_comparison(place.runs))


def edit_pane(place: Place) -> None:
    """A change of the run's decisions, and a rerun with it."""
    texts = page.token_texts_of(place.run, place.run.record.prompt_tokens)
    token = place.token
    text = "" if token is None or token >= len(texts) else texts[token].strip()
    edit_section(place.run, place.layer, place.head, token, text)


@st.cache_resource(max_entries=4, hash_funcs=BY_STAMP, show_spinner=False)
def departures(run: Run) -> difference.DepartureSteps:
    """`difference.departure_steps`, kept for some runs."""
    return difference.departure_steps(run)


PANES: Mapping[str, Callable[[Place], None]] = {
    "text": text_pane, "attention": attention_pane, "lineage": lineage_pane, "kl": kl_pane, "board": board_pane,
    "edit": edit_pane,
}  # fmt: skip
LABELS = {
    "text": "Text", "attention": "Attention", "lineage": "What flowed into a slot", "kl": "KL", "board": "Answers",
    "edit": "Change and rerun",
}  # fmt: skip
