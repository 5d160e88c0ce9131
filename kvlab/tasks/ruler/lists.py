"""RULER's lists of common and of frequent words."""

from __future__ import annotations

import string
from collections import Counter
from random import Random

from kvlab.models.mini.words import ADJECTIVES, NAMES
from kvlab.tasks.draft import Draft
from kvlab.tasks.ruler.template import CWE, FWE, Wording, draw_letters, filled_with, sample_of
from kvlab.tasks.sample import Sample

# common words; exponent of the Zipf distribution; letters of a coded word
_COMMON = 10
_ALPHA = 2.0
_CODED = 6


def cwe(draft: Draft, *, times: int = 6) -> Sample:
    """RULER's cwe: a numbered list in which ten words occur `times` times, others once; the share of the ten found."""
    draft.check_range("times", times, 2, 30)
    random = draft.random
    words = random.sample([*NAMES, *(f"{one}{two}" for one in ADJECTIVES for two in NAMES)], len(NAMES) + 2000)
    common = words[:_COMMON]
    others = words[_COMMON:]
    order = random.random()

    def render(count: int) -> str:
        listed = [*common * times, *others[:count]]
        Random(order).shuffle(listed)
        return wording.before + " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))

    wording = Wording.of(CWE)
    text = filled_with(draft, wording, render, min(len(others), draft.length))
    return sample_of(draft, wording, text, common, 120, "string_match_all")


def fwe(draft: Draft) -> Sample:
    """RULER's fwe: coded words with Zipf frequencies, the first one as dots; the share of the next three found."""
    random = draft.random
    words = ["....", *draw_letters(random, 60, _CODED, string.ascii_lowercase)]
    wording = Wording.of(FWE)
    weights = [(rank + 1) ** -_ALPHA for rank in range(len(words))]
    drawn = random.choices(words, weights, k=draft.length)
    sure = [word for word, times in zip(words[1:4], (9, 6, 4), strict=True) for _ in range(times)]
    random.shuffle(sure)  # so that even a short text has three words with different counts

    def render(count: int) -> str:
        return wording.before + " ".join([*sure, *drawn[:count]])

    text = filled_with(draft, wording, render, draft.length)
    counts = Counter(word for word in text.removeprefix(wording.before).split() if word != "....")
    return sample_of(draft, wording, text, [word for word, _ in counts.most_common(3)], 50, "string_match_all")
