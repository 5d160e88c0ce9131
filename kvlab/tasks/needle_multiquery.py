"""Many needles, several asked for at once (RULER: niah_multiquery)."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.build import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, needles: int = 6, queries: int = 3
) -> Sample:
    """Return a prompt with `needles` needles of which `queries` are asked for in one question.

    The score is the share of the asked-for values that the answer holds.
    """
    check_range("needle_multiquery", "needles", needles, 1, len(NAMES))
    check_range("needle_multiquery", "queries", queries, 1, needles)
    draft = Draft(tokenizer, "needle_multiquery", length, seed, index)
    random = draft.random
    depths = spread(random, needles)
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    facts = list(zip(phrasing.draw_names(random, needles), phrasing.draw_values(random, needles), strict=True))
    asked = random.sample(facts, queries)
    query = phrasing.multi_query([name for name, _ in asked], [value for _, value in asked], kind)
    statements = [phrasing.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, answers=[value for _, value in asked])


TASK = Task("needle_multiquery", "many numbers, several asked for in one question", generate, ruler="niah_multiquery")
