"""Frequent words extraction (RULER: fwe): the three most frequent words of a list drawn from a Zipf distribution."""

from __future__ import annotations

from collections import Counter
from random import Random

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range

_EXPONENT = 1.5  # RULER uses 2.0; a flatter one makes the third word rare enough to be lost
_TOP = 3
_FEWEST_WORDS = 20  # fewer draws rarely have three words with different counts
_MOST_WORDS = 20_000


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None, words: int = 80
) -> Sample:
    """Return a list of `words` words, drawn with repetition, with real text around it; the score is the share found."""
    check_range("frequent_words", "words", words, _FEWEST_WORDS, _MOST_WORDS)
    draft = Draft(tokenizer, "frequent_words", length, seed, index)
    random = draft.random
    place = random.random()
    listed = _draw_list(random, words)
    counts = Counter(listed)
    query = phrasing.common_words_query([word for word, _ in counts.most_common(_TOP)])
    place = place if depth is None else depth
    block = phrasing.word_list(listed)
    return draft.around(query, block, place, depth=place, counts=dict(counts))


def _draw_list(random: Random, count: int) -> list[str]:
    """Return a drawn list whose three most frequent words and the fourth have four different counts."""
    while True:
        names = phrasing.draw_names(random, len(NAMES))
        weights = [(rank + 1) ** -_EXPONENT for rank in range(len(names))]
        listed = random.choices(names, weights, k=count)
        top = [times for _, times in Counter(listed).most_common(_TOP + 1)]
        if len(set(top)) == _TOP + 1:
            return listed


TASK = Task("frequent_words", "the three most frequent words, Zipf", generate, uses_depth=True, ruler="fwe")
