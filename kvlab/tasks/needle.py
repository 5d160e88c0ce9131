"""One needle in a haystack (RULER: niah_single_2): a number stated once in real prose."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.tasks.draft import Draft
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task


def generate(tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None) -> Sample:
    """Return a prompt with one needle at `depth` (None: random); raises UserError for too short a length."""
    draft = Draft(tokenizer, "needle", length, seed, index)
    random = draft.random
    drawn = random.random()
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    name, value = phrasing.draw_names(random, 1)[0], phrasing.draw_value(random)
    query = phrasing.needle_query(kind, name, value)
    place = drawn if depth is None else depth
    statement = phrasing.needle_statement(kind, name, value)
    return draft.hiding(query, [statement], [place], depth=place)


TASK = Task(
    "needle", "one number hidden in a story, at a chosen depth", generate, uses_depth=True, ruler="niah_single_2"
)
