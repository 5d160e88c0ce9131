"""Whether vectors of neighbouring tokens are more similar than those of any two tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.head_states import head_states
from kvlab.trace.reader import Run

OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
NEAR = 8
MOST_TOKENS = 4096  # longer texts are truncated
COLUMNS = ("kind", "offset", "cosine", "any_pair")


def cosine_by_offset(unit: np.ndarray, offsets: Sequence[int] = OFFSETS) -> np.ndarray:
    """(offsets,) mean cosine of all pairs of tokens at this distance; NaN if the text is too short."""
    units = unit.astype(np.float32)
    pairs = (np.einsum("td,td->t", units[offset:], units[:-offset]) for offset in offsets)
    return np.array([found.mean() if len(found) else np.nan for found in pairs], np.float32)


def cosine_of_any_pair(unit: np.ndarray) -> float:
    """Mean cosine over all pairs of different tokens."""
    tokens = len(unit)
    units = unit.astype(np.float32)
    total, own = units.sum(axis=0, dtype=np.float64), float(np.einsum("td,td->", units, units))
    return float((total @ total - own) / (tokens * (tokens - 1))) if tokens > 1 else float("nan")


def locality_of_heads(run: Run, heads: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """As `locality_of_states` for every kind of `head_states`, with columns layer and head."""
    parts = [
        locality_of_states(head_states(run, layer, head, MOST_TOKENS)).assign(layer=layer, head=head)
        for layer, head in heads
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*COLUMNS, "layer", "head"])


def locality_of_states(states: Mapping[str, np.ndarray], offsets: Sequence[int] = OFFSETS) -> pd.DataFrame:
    """Columns kind, offset, cosine (mean of all pairs at this distance), any_pair (mean of any two tokens)."""
    parts = []
    for kind, unit in states.items():
        found = pd.DataFrame({"kind": kind, "offset": offsets, "cosine": cosine_by_offset(unit, offsets)})
        parts.append(found.assign(any_pair=cosine_of_any_pair(unit)).dropna(subset="cosine"))
    return pd.concat(parts, ignore_index=True)


def near_and_any(locality: pd.DataFrame) -> pd.DataFrame:
    """Mean over heads by kind: columns near (at most `NEAR` apart), any_pair, rise (near - any_pair)."""
    near = locality[locality["offset"] <= NEAR].groupby("kind", sort=False)[["cosine", "any_pair"]].mean()
    return near.rename(columns={"cosine": "near"}).assign(rise=near["cosine"] - near["any_pair"])
