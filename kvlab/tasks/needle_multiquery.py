"""Many needles and one question for several (RULER: niah_multiquery)."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, needles: int = 6, queries: int = 3
) -> Sample:
    """Return a prompt with `needles` needles and one question for `queries` of them.

    The score is the share of the requested values in the answer.
    """
    check_range("needle_multiquery", "needles", needles, 1, len(NAMES))
    check_range("needle_multiquery", "queries", queries, 1, needles)
    draft = Draft(tokenizer, "needle_multiquery", length, seed, index)
    random = draft.random
    depths = spread(random, needles)
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    facts = list(zip(phrasing.draw_names(random, needles), phrasing.draw_values(random, needles), strict=True))
    targets = random.sample(facts, queries)
    query = phrasing.multi_query([name for name, _ in targets], [value for _, value in targets], kind)
    statements = [phrasing.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, answers=[value for _, value in targets])


TASK = Task("needle_multiquery", "many numbers, one question for several", generate, ruler="niah_multiquery")
