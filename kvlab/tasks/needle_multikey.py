"""Many needles, one asked for (RULER: niah_multikey_1): the others are distractors of the same form."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.build import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None, needles: int = 8
) -> Sample:
    """Return a prompt with `needles` needles of which one is asked for: the one at `depth`, or a random one."""
    check_range("needle_multikey", "needles", needles, 1, len(NAMES))
    draft = Draft(tokenizer, "needle_multikey", length, seed, index)
    random = draft.random
    depths = spread(random, needles)
    asked = random.randrange(needles)
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    facts = list(zip(phrasing.draw_names(random, needles), phrasing.draw_values(random, needles), strict=True))
    if depth is not None:
        depths[asked] = depth
        order = sorted(range(needles), key=depths.__getitem__)
        facts, depths, asked = [facts[i] for i in order], [depths[i] for i in order], order.index(asked)
    query = phrasing.needle_query(kind, *facts[asked])
    statements = [phrasing.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, depth=depths[asked])


TASK = Task(
    "needle_multikey",
    "many numbers hidden in a story, one asked for",
    generate,
    uses_depth=True,
    ruler="niah_multikey_1",
)
