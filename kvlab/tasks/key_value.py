"""Key-value recall: a list of records and a question for one key (RULER: niah_multikey_2)."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None, pairs: int = 32
) -> Sample:
    """Return a list of `pairs` records with real text around it and a question for one of them."""
    check_range("key_value", "pairs", pairs, 1, len(NAMES))
    draft = Draft(tokenizer, "key_value", length, seed, index)
    random = draft.random
    place = random.random()
    records = list(zip(phrasing.draw_names(random, pairs), phrasing.draw_values(random, pairs), strict=True))
    query = phrasing.key_value_query(*random.choice(records))
    place = place if depth is None else depth
    block = phrasing.key_value_list(records)
    return draft.around(query, block, place, depth=place)


TASK = Task("key_value", "one value of a list of records", generate, uses_depth=True, ruler="niah_multikey_2")
