"""Verbatim copy: a passage at the start, other text after it, then the request to copy the passage."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.tasks.draft import Draft
from kvlab.tasks.haystack import draw_window
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range

_MOST_WORDS = 5000


def generate(tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, words: int = 24) -> Sample:
    """Return a passage of `words` words to copy; the score is the share copied before the first mistake."""
    check_range("copy", "words", words, 1, _MOST_WORDS)
    draft = Draft(tokenizer, "copy", length, seed, index)
    random = draft.random
    passage = " ".join("".join(draw_window(random, words).words).split())
    query = phrasing.copy_query(passage)
    return draft.around(query, f"{phrasing.copy_context(passage)}\n", 0.0, "word_prefix")


TASK = Task("copy", "copy a passage word for word", generate)
