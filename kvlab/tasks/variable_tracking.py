"""Variable tracking (RULER: vt): chains of assignments; name every variable that holds a value."""

from __future__ import annotations

from random import Random

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range


def generate(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, hops: int = 3, chains: int = 1
) -> Sample:
    """Return `chains` interleaved chains of `hops` + 1 variables each, and a question for the variables of one.

    The score is the share of the chain's variables in the answer (RULER's).
    """
    check_range("variable_tracking", "hops", hops, 1, len(NAMES) - 1)
    check_range("variable_tracking", "chains", chains, 1, len(NAMES) // (hops + 1))
    draft = Draft(tokenizer, "variable_tracking", length, seed, index)
    random = draft.random
    depths = spread(random, chains * (hops + 1))
    names = phrasing.draw_names(random, chains * (hops + 1))
    groups = [names[start : start + hops + 1] for start in range(0, len(names), hops + 1)]
    values = phrasing.draw_values(random, chains)
    statements = interleave(random, [phrasing.variable_chain(*chain) for chain in zip(groups, values, strict=True)])
    query = phrasing.variable_query(groups[0], values[0])
    return draft.hiding(query, statements, depths)


def interleave(random: Random, chains: list[list[str]]) -> list[str]:
    """Return the statements of all chains interleaved, each chain in its own order."""
    waiting = [list(chain) for chain in chains]
    mixed = []
    while any(waiting):
        mixed.append(random.choice([chain for chain in waiting if chain]).pop(0))
    return mixed


TASK = Task("variable_tracking", "name every variable of a chain of assignments", generate, ruler="vt")
