"""Text of a run with each token shaded by class, linked to the charts that run along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from app.base.theme import theme as page_theme
from app.components.binary_payload import pack
from app.components.text_payload import texts_for
from app.figures.export_menu import Offer, titled
from kvlab.analysis.comparison.difference import NAMES
from kvlab.browser import read_static
from kvlab.figures.base.palette import HUES, pick
from kvlab.figures.difference import HUES_OF_TWO, Hues, class_looks
from kvlab.report.views import Cue, Text, TokenClass
from kvlab.report.views import state_classes as state_classes

READING = "Every token of the text, shaded by what became of it."
DIFFERENCE_CUES: tuple[Cue, ...] = ("none", "under", "dashed", "strike", "faint")

_component = st.components.v2.component(
    "kvlab_tokentext",
    html=read_static("tokentext.html"),
    css=read_static("tokentext.css"),
    js=read_static("tokentext.js"),
)


def along_text(figure: go.Figure, axis: Literal["x", "y"] = "x", offset: int = 0, place: str = "") -> go.Figure:
    """Link a figure to the text: a point's token position is `offset` plus its value on `axis`.

    A label counts as the number it begins with. For an axis of steps the offset is prompt tokens - 1: the newest token
    of step k. `place` identifies the figure's content for browser tests.
    """
    known = figure.layout.meta or {}
    return figure.update_layout(meta={**known, "tokens": {"axis": axis, "offset": offset}, "place": place})


def difference_classes(hues: Hues = HUES_OF_TWO) -> tuple[TokenClass, ...]:
    """Classes in the order of `kvlab.analysis.comparison.difference.NAMES`; `hues` are those of the two runs."""
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
    source: str = "",
) -> Any:
    """Show the panel under its title and menu: token i is shaded as `classes[codes[i]]`.

    With `on_chosen` words can be chosen (click, then shift-click); during that call the returned state's `chosen` is
    [first, last]. `identity` names the text: while it stays the same the panel keeps its position. `scroll` is a
    token to scroll to.
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
    return _component(key=key, data=pack(data), on_chosen_change=on_chosen or (lambda: None))
