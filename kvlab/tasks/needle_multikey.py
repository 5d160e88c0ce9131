"""Many needles and a question for one (RULER: niah_multikey_1): the others are distractors of the same form."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Depth, Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, depth: Depth = None, needles: int = 8
) -> Sample:
    """Return a prompt with `needles` needles and a question for the one at `depth`, or for a random one."""
    check_range("needle_multikey", "needles", needles, 1, len(NAMES))
    draft = Draft(tokenizer, "needle_multikey", length, seed, index)
    random = draft.random
    depths = spread(random, needles)
    target = random.randrange(needles)
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    facts = list(zip(phrasing.draw_names(random, needles), phrasing.draw_values(random, needles), strict=True))
    if depth is not None:
        depths[target] = depth
        order = sorted(range(needles), key=depths.__getitem__)
        facts, depths, target = [facts[i] for i in order], [depths[i] for i in order], order.index(target)
    query = phrasing.needle_query(kind, *facts[target])
    statements = [phrasing.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, depth=depths[target])


TASK = Task(
    "needle_multikey",
    "many numbers hidden in a story, a question for one",
    generate,
    uses_depth=True,
    ruler="niah_multikey_1",
)
