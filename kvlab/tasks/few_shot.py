"""Few-shot labels: examples of several classes in the context, and one more item to label."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import ADJECTIVES, NAMES
from kvlab.tasks.draft import Draft
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    seed: int,
    index: int,
    *,
    depth: Depth = None,
    classes: int = 8,
    shots: int = 4,
) -> Sample:
    """Return `shots` examples of each of `classes` classes with real text around them and one item to label."""
    check_range("few_shot", "classes", classes, 1, len(NAMES) // 2)
    check_range("few_shot", "shots", shots, 1, len(ADJECTIVES))
    draft = Draft(tokenizer, "few_shot", length, seed, index)
    random = draft.random
    place = random.random()
    words = phrasing.draw_names(random, 2 * classes)
    pairs = list(zip(words[:classes], words[classes:], strict=True))
    query = phrasing.few_shot_query(random.choice(ADJECTIVES), *random.choice(pairs))
    place = place if depth is None else depth
    block = phrasing.few_shot_list(random, pairs, shots)
    return draft.around(query, block, place, "exact_match", depth=place, hold_back=1)  # a label is one token


TASK = Task("few_shot", "the label of one more item, learned from examples", generate, uses_depth=True)
