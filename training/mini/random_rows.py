"""Recall over random tokens, where induction circuits form: repeated spans and shuffled key-value pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from kvlab.models.info.mini import TRAINING_SEED_START
from training.mini import task_rows
from training.mini.presets import Phase
from training.mini.rows import IGNORED, Batch, Row, RowBuilder, stack
from training.mini.text import Text

_FIRST_PLAIN_TOKEN = 2  # after <bos> and <eos>
_CHUNK = 8  # a repetition is scored in pieces of this many tokens
_MOST_PAIRS = 128


def _distinct_tokens(rng: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    return (_FIRST_PLAIN_TOKEN + rng.choice(vocab_size - _FIRST_PLAIN_TOKEN, count, replace=False)).tolist()


def repeat_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """A span of different random tokens, repeated; every repetition is an answer."""
    length = phase.length
    span = _distinct_tokens(rng, int(rng.integers(min(8, length // 4), length // 2 + 1)), text.vocab_size)
    row = RowBuilder("repeat", text.bos_token_id)
    row.add(span, IGNORED)
    while len(row) < length:
        row.add(span[:1])  # the start of a repetition cannot be predicted
        for start in range(1, len(span), _CHUNK):
            row.add_answer(span[start : start + _CHUNK])
    return row.finish(length)


def pairs_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Random key-value pairs, then the keys in another order, each followed by its value: the answers."""
    length = phase.length
    count = int(rng.integers(max(2, min(_MOST_PAIRS, length // 4) // 4), min(_MOST_PAIRS, length // 4) + 1))
    tokens = np.array(_distinct_tokens(rng, 2 * count, text.vocab_size)).reshape(count, 2)
    row = RowBuilder("pairs", text.bos_token_id)
    row.add(tokens.ravel().tolist())
    while len(row) < length:
        for key, value in tokens[rng.permutation(count)].tolist():
            row.add([key])
            row.add_answer([value])
    return row.finish(length)


RowMaker = Callable[[np.random.Generator, Text, Phase], Row]
ROW_MAKERS: Mapping[str, RowMaker] = MappingProxyType(
    {
        "repeat": repeat_row,
        "pairs": pairs_row,
        "text": task_rows.text_row,
        "needle": task_rows.needle_row,
        "multi_query": task_rows.multi_query_row,
        "multi_value": task_rows.multi_value_row,
        "key_value": task_rows.key_value_row,
        "variables": task_rows.variables_row,
        "labels": task_rows.labels_row,
        "words": task_rows.words_row,
        "copy": task_rows.copy_row,
        "arithmetic": task_rows.arithmetic_row,
        "mixed": task_rows.mixed_row,
        "natural_repeat": task_rows.natural_repeat_row,
    }
)


def draw_batch(text: Text, phase: Phase, seed: int, phase_index: int, step: int) -> Batch:
    """The batch of one step of a phase."""
    rng = np.random.default_rng([TRAINING_SEED_START + seed, phase_index, step])
    kinds = rng.choice(list(phase.mixture), size=phase.batch, p=list(phase.mixture.values()))
    return stack([ROW_MAKERS[kind](rng, text, phase) for kind in kinds])
