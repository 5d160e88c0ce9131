"""A text whose words can be clicked: the first and the last word of a fact, several facts, each shown marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import streamlit as st

from kvlab.browser import read_static

HTML = """
<div class="kv-word-picker" data-testid="wordpicker">
  <div class="hint" data-part="hint" aria-live="polite"></div>
  <div class="text" data-part="text" tabindex="0" role="application"
       aria-label="Text to mark facts in: arrow keys move, Enter marks the first and then the last word"></div>
  <div class="facts" data-part="facts"></div>
</div>
"""
LONGEST_TEXT = 400_000  # characters in the browser; what stands further on can be typed

Spans = tuple[tuple[int, int], ...]

_component = st.components.v2.component(
    "kvlab_wordpicker",
    html=HTML,
    css=read_static("wordpicker.css"),
    js=read_static("wordpicker.js"),
)


@lru_cache(maxsize=2)  # of 130,000 words one takes 16 MB
def word_spans(text: str) -> Spans:
    """(start, stop) of every word of the text; a page asks for those of one text several times."""
    return tuple(found.span() for found in re.finditer(r"\S+", text))


def words_between(text: str, first: int, last: int) -> tuple[int, int]:
    """(start, stop) in the text from the word number `first` to the word number `last`, in either order."""
    words = word_spans(text)
    first, last = sorted((first, last))
    return words[first][0], words[last][1]


def marked_words(text: str, facts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first, last) number of the words that hold a character of each fact; -1 twice for a fact beyond the text."""
    words = word_spans(text)
    found = []
    for start, stop in facts:
        inside = [place for place, (begin, end) in enumerate(words) if begin < stop and end > start]
        found.append((inside[0], inside[-1]) if inside else (-1, -1))
    return found


def word_picker(text: str, facts: Sequence[tuple[int, int]], key: str, on_change: Callable[[], None]) -> Any:
    """Mounts the text with its facts marked.

    `on_change` is called when two words were chosen (`st.session_state[key].picked` is [first, last] just then) or a
    fact was taken away (`.removed` is its place in `facts`).
    """
    shown = text[:LONGEST_TEXT]
    starts = [start for start, _ in word_spans(shown)]
    bounds = [0, *starts[1:], len(shown)] if starts else [0, len(shown)]
    data = {
        "texts": [shown[start:stop] for start, stop in pairwise(bounds)],
        "facts": [list(words) for words in marked_words(shown, facts)],
        "words": [" ".join(text[start:stop].split()) for start, stop in facts],
    }
    return _component(key=key, data=data, on_picked_change=on_change, on_removed_change=on_change)
