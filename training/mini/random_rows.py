"""Recall over random tokens, where the induction circuit is born: repeated spans and shuffled key-value pairs."""

from __future__ import annotations

import numpy as np

from training.mini.presets import Phase
from training.mini.rows import IGNORED, Row, RowBuilder
from training.mini.text import Text

_FIRST_PLAIN_TOKEN = 2  # after <bos> and <eos>
_CHUNK = 8  # a repetition is scored in pieces of this many tokens
_MOST_PAIRS = 128


def _distinct_tokens(rng: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    return (_FIRST_PLAIN_TOKEN + rng.choice(vocab_size - _FIRST_PLAIN_TOKEN, count, replace=False)).tolist()


def repeat_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Return a span of different random tokens said again and again; every repetition is an answer."""
    length = phase.length
    span = _distinct_tokens(rng, int(rng.integers(min(8, length // 4), length // 2 + 1)), text.vocab_size)
    row = RowBuilder("repeat", text.bos_token_id)
    row.add(span, IGNORED)
    while len(row) < length:
        row.add(span[:1])  # which repetition starts now is not to be foreseen
        for start in range(1, len(span), _CHUNK):
            row.add_answer(span[start : start + _CHUNK])
    return row.finish(length)


def pairs_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Return random key-value pairs, then the keys in another order, each followed by its value: the answers."""
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
