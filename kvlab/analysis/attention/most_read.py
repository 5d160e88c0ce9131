"""The slots that get most attention at a step, in every recorded head."""

from __future__ import annotations

import numpy as np

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run


def most_read(run: Run, layers: tuple[int, ...], row: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (heads, count) int32 and attention (heads, count) float32 of the slots read most, most first.

    `row` counts recorded attention rows. Heads are those of `layers`, one layer after the other; a head without a
    recorded row has positions -1.
    """
    heads = run.record.model.num_key_value_heads
    positions = np.full((len(layers) * heads, count), -1, np.int32)
    masses = np.zeros((len(layers) * heads, count), np.float32)
    for place, layer in enumerate(layers):
        for head in range(heads):
            try:
                found = run.attention_row(layer, head, row)
            except UserError:  # this layer or head was not recorded
                continue
            if found is None:
                return positions, masses
            mass = found[1].astype(np.float32)
            most = np.argsort(mass)[::-1][:count]
            most = most[mass[most] > 0]
            positions[place * heads + head, : len(most)] = most
            masses[place * heads + head, : len(most)] = mass[most]
    return positions, masses
