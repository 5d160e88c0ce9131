"""Taking the rotary position embedding off recorded keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def unrotated(unit: np.ndarray, inverse_frequencies: Sequence[float]) -> np.ndarray:
    """Keys (tokens, head_dim) as they were before rotation, float32; row t stands at position t.

    `inverse_frequencies` in radians a position: coordinate i was turned together with coordinate i + their number,
    coordinates beyond both were not. Turning keeps lengths, so unit keys stay unit keys.
    """
    frequencies = np.asarray(inverse_frequencies, np.float64)
    half, keys = len(frequencies), unit.astype(np.float32)
    angle = np.arange(len(unit))[:, None] * frequencies
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second, rest = keys[:, :half], keys[:, half : 2 * half], keys[:, 2 * half :]
    return np.concatenate([first * cosine + second * sine, second * cosine - first * sine, rest], axis=1)
