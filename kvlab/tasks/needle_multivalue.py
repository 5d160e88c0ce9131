"""One name with several values among other names (RULER: niah_multivalue); all values are requested."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range

_MOST_VALUES = 1000


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, values: int = 3, names: int = 2
) -> Sample:
    """Return a prompt with `names` names of `values` values each, and a question for all values of one name.

    The score is the share of the values in the answer.
    """
    check_range("needle_multivalue", "names", names, 1, len(NAMES))
    check_range("needle_multivalue", "values", values, 1, _MOST_VALUES)
    draft = Draft(tokenizer, "needle_multivalue", length, seed, index)
    random = draft.random
    depths = spread(random, names * values)
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    chosen = phrasing.draw_names(random, names)
    facts = list(zip(chosen * values, phrasing.draw_values(random, names * values), strict=True))
    random.shuffle(facts)
    query = phrasing.multi_value_query(chosen[0], [value for name, value in facts if name == chosen[0]])
    statements = [phrasing.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths)


TASK = Task("needle_multivalue", "one name with several numbers, a question for all", generate, ruler="niah_multivalue")
