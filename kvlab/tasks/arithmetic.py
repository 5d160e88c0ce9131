"""Arithmetic over retrieved numbers: add two small numbers hidden far apart."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from kvlab.models.mini import phrasing
from kvlab.models.mini.words import NAMES
from kvlab.tasks.draft import Draft, spread
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import Task, check_range

_MOST_COINS = 50


def generate(tokenizer: PreTrainedTokenizerBase, length: int, seed: int, index: int, *, holders: int = 4) -> Sample:
    """Return a prompt with `holders` owners of coins and a question for the sum of two of them.

    The answer repeats both numbers; only its last number, the sum, is scored.
    """
    check_range("arithmetic", "holders", holders, 2, len(NAMES))
    draft = Draft(tokenizer, "arithmetic", length, seed, index)
    random = draft.random
    depths = spread(random, holders)
    coins = {name: random.randrange(_MOST_COINS) for name in phrasing.draw_names(random, holders)}
    first, second = random.sample(list(coins), 2)
    query = phrasing.arithmetic_query(first, second, (coins[first], coins[second]))
    statements = [phrasing.arithmetic_statement(name, count) for name, count in coins.items()]
    return draft.hiding(query, statements, depths, "final_number")


TASK = Task("arithmetic", "the sum of two numbers hidden in a story", generate)
