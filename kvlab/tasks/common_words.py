"""Common words extraction (RULER: cwe): which words occur most often in a shuffled list."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range

_COMMON_COUNTS = ((9, 12), (6, 8), (4, 5))  # the three common words; the others occur once or twice


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None, rare: int = 40
) -> Sample:
    """Return a list in which three words occur often among `rare` others, with real text around it.

    The score is the share of the three in the answer. RULER has ten words of equal count; here the counts differ, so
    that only one order of the answer is right.
    """
    check_range("common_words", "rare", rare, 1, len(NAMES) - len(_COMMON_COUNTS))
    draft = Draft(tokenizer, "common_words", length, seed, index)
    random = draft.random
    place = random.random()
    words = phrasing.draw_names(random, len(_COMMON_COUNTS) + rare)
    counts = [random.randint(*bounds) for bounds in _COMMON_COUNTS] + random.choices((1, 2), k=rare)
    listed = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
    random.shuffle(listed)
    query = phrasing.common_words_query(words[: len(_COMMON_COUNTS)])
    place = place if depth is None else depth
    block = phrasing.word_list(listed)
    return draft.around(query, block, place, depth=place, counts=dict(zip(words, counts, strict=True)))


TASK = Task("common_words", "the three most common words of a list", generate, uses_depth=True, ruler="cwe")
