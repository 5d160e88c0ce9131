"""The text of a run, each token shaded by its class and linked to charts over the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import streamlit as st

from app.base.component import component
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.payload import texts_for
from app.figures.export_menu import Offer, show_title
from kvlab.browser import pack_payload, read_static
from kvlab.report.views import Cue, Text, TokenClass
from kvlab.report.views import state_classes as state_classes
from kvlab.views.base.palette import HUES, pick
from kvlab.views.base.provenance import FigureSource
from kvlab.views.base.template import along_text as along_text
from kvlab.views.difference import HUES_OF_TWO, NAMES, Hues, class_looks

READING = "Every token of the text, shaded by its fate."
DIFFERENCE_CUES: tuple[Cue, ...] = ("none", "under", "dashed", "strike", "faint")

_component = component("tokentext", read_static("tokentext.html"), "tokentext.css")


def difference_classes(hues: Hues = HUES_OF_TWO) -> tuple[TokenClass, ...]:
    """The classes of `kvlab.views.difference.NAMES`, in its order.

    `hues`: colours of the two runs, as in the figures.
    """
    by_name = class_looks(hues)
    looks = zip(NAMES, [by_name.get(name, ("grey", ""))[0] for name in NAMES], DIFFERENCE_CUES, strict=True)
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
    notes: Sequence[str] = (),
    has_menu: bool = True,
) -> Any:
    """Mount the panel under its title and menu: token i is shaded as `classes[codes[i]]`.

    With `on_chosen` words can be chosen (click, then shift-click); the result's `chosen` is then [first, last]. The
    panel keeps its scroll position while `identity` is the same. `scroll` brings a token into view. `notes` (per token)
    are shown beside the class of the token under the pointer. `has_menu`: with the export menu, which costs as much as
    the text each time the page runs.
    """
    build = lambda: Text(texts=tuple(texts), codes=tuple(codes.tolist()), classes=tuple(classes), chosen=chosen)  # noqa: E731
    if has_menu:
        show_title(Offer(title, build, READING, source, has_picture=True), key)
    else:
        st.markdown(f"**{plain(title)}**")
    hint = "Hover over a word or a chart to highlight the token in both."
    theme = page_theme()
    data = texts_for(key, texts) | {
        "codes": codes.astype(np.uint8),
        "classes": [{"name": item.name, "colour": pick(item.colour, theme), "cue": item.cue} for item in classes],
        "identity": identity,
        "chosen": None if chosen is None else list(chosen),
        "choosing": on_chosen is not None,
        "scroll": scroll,
        "notes": list(notes),
        "hint": f"{hint} Click a word to choose it, shift-click another to choose all words between."
        if on_chosen
        else hint,
    }
    return _component(key=key, data=pack_payload(data), on_chosen_change=on_chosen or (lambda: None))
