"""Taking the rotary position embedding off recorded keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def unrotated(
    unit: np.ndarray, inverse_frequencies: Sequence[float], interleaved: bool = False, scaling: float = 1.0
) -> np.ndarray:
    """Unit keys (tokens, head_dim) as they were before rotation, of length 1 again, float32; row t is position t.

    `inverse_frequencies` in radians a position: coordinate i was turned together with coordinate i + their number, or,
    if `interleaved`, 2 i with 2 i + 1; coordinates beyond both were not. `scaling` is how much longer what was turned
    became, which changes a key's direction where only a part of it is turned.
    """
    frequencies = np.asarray(inverse_frequencies, np.float64)
    width, keys = 2 * len(frequencies), unit.astype(np.float32)
    angle = np.arange(len(unit))[:, None] * frequencies
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    turned, rest = keys[:, :width], keys[:, width:]
    pairs = turned.reshape(len(keys), *((-1, 2) if interleaved else (2, -1)))
    apart = 2 if interleaved else 1
    first, second = np.moveaxis(pairs, apart, 0)
    back = np.stack([first * cosine + second * sine, second * cosine - first * sine], apart)
    before = np.concatenate([back.reshape(turned.shape) / np.float32(scaling), rest], axis=1)
    return before / np.maximum(np.linalg.norm(before, axis=1, keepdims=True), np.finfo(np.float32).tiny)
