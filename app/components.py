"""Components of several pages: shaded text, marked words, and vectors and texts that are sent to the browser once."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import streamlit as st

from app.base.component import component
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.export_menu import Offer, show_title
from kvlab.browser import pack_payload, read_static
from kvlab.report.views import Text, TokenClass
from kvlab.report.views import state_classes as state_classes
from kvlab.views.base import FigureSource, pick
from kvlab.views.base import along_text as along_text

_present = component("present", '<button class="kv-present" type="button">Present</button>', "present.css")


def present_button(page: str, key: str) -> None:
    """The button; `page` is the HTML, which the browser receives now."""
    _present(key=key, data={"html": page})


_shared_component = component("shared")


class Shared:
    """What is sent to the browser once for all views of a page; `name` identifies it."""

    content: Mapping[str, Any]  # vectors and texts by their names

    @cached_property
    def name(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(pack_payload(self.content)).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The content as sent to the browser."""
        return pack_payload({"name": self.name, **self.content})


@dataclass(frozen=True, eq=False)
class SharedData(Shared):
    """Vectors that are sent once."""

    content: Mapping[str, np.ndarray]


class SentTexts(Shared, list[str]):
    """Token texts that are sent once."""

    @property
    def content(self) -> dict[str, list[str]]:  # type: ignore[override]  # read only
        return {"value": list(self)}


def share(view: str, **fields: Shared) -> dict[str, Any]:
    """The data of a view: by field, the names of shared values, which are sent to the browser here."""
    for field, value in fields.items():
        with st.container(key=f"shared-{field}-{view}"):
            _shared_component(key=f"shared-{field}-of-{view}", data=value.packed)
    return {"shared": {field: value.name for field, value in fields.items()}}


def texts_for(view: str, texts: list[str]) -> dict[str, Any]:
    """The data of a view: the texts, or for `SentTexts` the name of those that the browser has."""
    return share(view, texts=texts) if isinstance(texts, SentTexts) else {"texts": texts}


READING = "Every token of the text, shaded by its fate."

_component = component("tokentext", read_static("tokentext.html"), "tokentext.css")


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
    if has_menu:
        offer = Offer(
            title,
            lambda: Text(texts=tuple(texts), codes=tuple(codes.tolist()), classes=tuple(classes), chosen=chosen),
            READING,
            source,
            has_picture=True,
        )
        show_title(offer, key)
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


HTML = """
<div class="kv-word-picker" data-testid="wordpicker">
  <div class="hint" data-part="hint" aria-live="polite"></div>
  <div class="text" data-part="text" tabindex="0" role="application"
       aria-label="Text to mark facts in: arrow keys move, Enter marks the first and then the last word"></div>
  <div class="facts" data-part="facts"></div>
</div>
"""
LONGEST_TEXT = 400_000  # characters in the browser; facts after that can be typed

Spans = tuple[tuple[int, int], ...]

_wordpicker_component = component("wordpicker", HTML, "wordpicker.css")


@lru_cache(maxsize=2)  # 16 MB for 130,000 words
def word_spans(text: str) -> Spans:
    """(start, stop) of every word of the text; cached, as a page needs them several times."""
    return tuple(found.span() for found in re.finditer(r"\S+", text))


def words_between(text: str, first: int, last: int) -> tuple[int, int]:
    """(start, stop) in the text from word `first` to word `last`, in either order."""
    words = word_spans(text)
    first, last = sorted((first, last))
    return words[first][0], words[last][1]


def marked_words(text: str, facts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first, last) word of each fact; (-1, -1) for a fact outside of the text."""
    words = word_spans(text)
    marked = []
    for start, stop in facts:
        inside = [number for number, (begin, end) in enumerate(words) if begin < stop and end > start]
        marked.append((inside[0], inside[-1]) if inside else (-1, -1))
    return marked


def word_picker(text: str, facts: Sequence[tuple[int, int]], key: str, on_change: Callable[[], None]) -> Any:
    """Mount the text with its facts marked.

    `on_change` is called when two words were chosen (`st.session_state[key].picked` is then [first, last]) or a fact
    was removed (`.removed` is its index in `facts`).
    """
    shown = text[:LONGEST_TEXT]
    starts = [start for start, _ in word_spans(shown)]
    bounds = [0, *starts[1:], len(shown)] if starts else [0, len(shown)]
    data = {
        "texts": [shown[start:stop] for start, stop in pairwise(bounds)],
        "facts": [list(words) for words in marked_words(shown, facts)],
        "words": [" ".join(text[start:stop].split()) for start, stop in facts],
    }
    return _wordpicker_component(key=key, data=data, on_picked_change=on_change, on_removed_change=on_change)
