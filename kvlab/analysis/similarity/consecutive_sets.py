"""Merging sets of any threshold from recorded keys, without running the model (KVMerger, Algorithm 1)."""

from __future__ import annotations

import numpy as np

BAND = 16  # places looked at for all tokens at once; longer sets are followed one by one
CHUNK = 64


def consecutive_sets(unit: np.ndarray, threshold: float) -> np.ndarray:
    """(tokens,) the anchor of each token's set, from unit keys (tokens, head_dim).

    The scan goes from the last token to the first: a set takes in the tokens before its anchor as long as each has a
    cosine above `threshold` with the anchor; the token that has not is the next anchor.
    """
    units = unit.astype(np.float32)
    reach = _reach_in_band(units, threshold).tolist()
    anchor = np.arange(len(units))
    place = len(units) - 1
    while place >= 0:
        length = reach[place] if reach[place] < BAND else _reach(units, place, threshold)
        anchor[place - length : place + 1] = place
        place -= length + 1
    return anchor


def set_count(anchor: np.ndarray) -> int:
    """How many sets there are: the slots that would be left."""
    return int((anchor == np.arange(len(anchor))).sum())


def _reach_in_band(units: np.ndarray, threshold: float) -> np.ndarray:
    """How many of the `BAND` tokens before each would join its set, were it an anchor."""
    reach = np.zeros(len(units), np.int64)
    growing = np.arange(1, len(units))
    for offset in range(1, BAND + 1):
        growing = growing[growing >= offset]
        cosine = np.einsum("td,td->t", units[growing], units[growing - offset])
        growing = growing[cosine > threshold]
        reach[growing] = offset
    return reach


def _reach(units: np.ndarray, place: int, threshold: float) -> int:
    """How many tokens before `place` join its set, looking at ever larger chunks."""
    length, size = 0, CHUNK
    while length < place:
        start = max(0, place - length - size)
        unlike = np.flatnonzero(units[start : place - length] @ units[place] <= threshold)
        if len(unlike):
            return place - (start + int(unlike[-1])) - 1
        length, size = place - start, 2 * size
    return length
