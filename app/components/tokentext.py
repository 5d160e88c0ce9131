"""The text of a run beside the figures: shaded by class, lit by charts that run along it, and lighting them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from app.base.theme import theme as page_theme
from app.components.payload import packed, texts_for
from app.figures.export_menu import Offer, titled
from kvlab.analysis.comparison.difference import NAMES
from kvlab.browser import read_static
from kvlab.figures.base.palette import HUES, pick
from kvlab.figures.difference import HUES_OF_TWO, Hues, class_looks
from kvlab.report.views import Cue, Text, TokenClass
from kvlab.report.views import state_classes as state_classes
from kvlab.results.provenance import FigureSource

READING = "Every token of the text, shaded by what became of it."
DIFFERENCE_CUES: tuple[Cue, ...] = ("none", "under", "dashed", "strike", "faint")

_component = st.components.v2.component(
    "kvlab_tokentext",
    html=read_static("tokentext.html"),
    css=read_static("tokentext.css"),
    js=read_static("tokentext.js"),
)


def along_text(figure: go.Figure, axis: Literal["x", "y"] = "x", offset: int = 0, place: str = "") -> go.Figure:
    """The figure, tied to the text: a point's position in it is `offset` plus its value on `axis`.

    Labels that begin with the position count as it. For an axis of steps the offset is prompt tokens - 1: the newest
    token of step k. `place` says what the figure is of, for whoever waits for it in the browser.
    """
    known = figure.layout.meta or {}
    return figure.update_layout(meta={**known, "tokens": {"axis": axis, "offset": offset}, "place": place})


def difference_classes(hues: Hues = HUES_OF_TWO) -> tuple[TokenClass, ...]:
    """The classes of `kvlab.analysis.comparison.difference.NAMES`, in its order.

    `hues`: colours of the two runs, as in the figures beside the text.
    """
    named = class_looks(hues)
    looks = zip(NAMES, [named.get(name, ("grey", ""))[0] for name in NAMES], DIFFERENCE_CUES, strict=True)
    return tuple(TokenClass(name=name, colour=HUES[hue], cue=cue) for name, hue, cue in looks)


def tokentext(
    texts: list[str],
    codes: np.ndarray,
    classes: Sequence[TokenClass],
    *,
    identity: str,
    key: str,
    chosen: tuple[int, int] | None = None,
    on_chosen: Callable[[], None] | None = None,
    scroll: int | None = None,
    title: str = "The text, token by token",
    source: FigureSource = "",
) -> Any:
    """Mounts the panel under its title with a menu: token i is shaded as `classes[codes[i]]`.

    With `on_chosen` words can be chosen (click, then shift-click); the result's `chosen` is [first, last] just then.
    `identity` names the text: while it stays the same the panel keeps its place. `scroll` brings a token into view.
    """
    make = lambda: Text(texts=tuple(texts), codes=tuple(codes.tolist()), classes=tuple(classes), chosen=chosen)  # noqa: E731
    titled(Offer(title, make, READING, source, pictured=True), key)
    hint = "Hover a word or a chart: both light the same token."
    theme = page_theme()
    data = texts_for(key, texts) | {
        "codes": codes.astype(np.uint8),
        "classes": [{"name": one.name, "colour": pick(one.colour, theme), "cue": one.cue} for one in classes],
        "identity": identity,
        "chosen": None if chosen is None else list(chosen),
        "choosing": on_chosen is not None,
        "scroll": scroll,
        "hint": f"{hint} Click a word to choose it, shift-click another to choose all between." if on_chosen else hint,
    }
    return _component(key=key, data=packed(data), on_chosen_change=on_chosen or (lambda: None))
