"""A text in which facts are marked by clicking their first and last word."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from app.base.component import component

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

_component = component("wordpicker", HTML, "wordpicker.css")


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
    return _component(key=key, data=data, on_picked_change=on_change, on_removed_change=on_change)
