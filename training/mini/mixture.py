"""Draw batches: row kinds by the phase's mixture, each step from its own seed, so a resumed run sees the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from kvlab.models.mini.phrasing import TRAINING_SEED_START
from training.mini import task_rows
from training.mini.presets import Phase
from training.mini.random_rows import pairs_row, repeat_row
from training.mini.rows import Batch, Row, stack
from training.mini.text import Text

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
    """Return the batch of one step of a phase."""
    rng = np.random.default_rng([TRAINING_SEED_START + seed, phase_index, step])
    kinds = rng.choice(list(phase.mixture), size=phase.batch, p=list(phase.mixture.values()))
    return stack([ROW_MAKERS[kind](rng, text, phase) for kind in kinds])
