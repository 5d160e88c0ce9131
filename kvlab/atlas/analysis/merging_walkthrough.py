"""KVMerger's pipeline on a dozen real tokens: similarity, sets, pivots, weights, merged keys; and its two rivals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.merge_sets import consecutive_sets
from kvlab.atlas.analysis.gaussian_weights import kernel
from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

LENGTH = 12
THRESHOLDS = (0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3)  # the paper's toy map uses 0.8


@dataclass(frozen=True)
class Walkthrough:
    """A window of tokens and what merging does with it.

    `tokens` has one row a token: position, set (position of its anchor), attention, pivot (position), weight;
    `similarity` (tokens, tokens), `keys` and `merged` (tokens, head_dim), the latter NaN where no slot is left.
    """

    threshold: float
    tokens: pd.DataFrame
    similarity: np.ndarray
    keys: np.ndarray
    merged: np.ndarray


def walkthrough(run: Run, layer: int, head: int, length: int = LENGTH) -> Walkthrough:
    """The first threshold of `THRESHOLDS` that finds sets in this head's prompt, at the window that shows most of them.

    Raises:
        UserError: keys were not recorded, or no two neighbours are alike enough.
    """
    unit, norm = (array.astype(np.float32) for array in run.keys(layer, head))
    prompt = run.record.prompt_tokens
    for threshold in THRESHOLDS:
        # Without the first token: a sink merges with nothing.
        anchor = consecutive_sets(unit[1:prompt], threshold)
        bounds = 1 + np.append(np.flatnonzero(np.diff(anchor, prepend=-1)), len(anchor))
        window = _best_window(bounds, length)
        if window is not None:
            attention = run.attention(layer, head, thinned=True)[0].astype(np.float32).sum(axis=0)
            return _of_window(unit, norm, attention, bounds[(window[0] <= bounds) & (bounds <= window[1])], threshold)
    raise UserError(f"No two neighbouring keys of layer {layer}, head {head} are alike: choose another head.")


def quantized(keys: np.ndarray, bits: int = 2) -> np.ndarray:
    """Each channel (column) rounded to 2^bits evenly spaced levels between its extremes."""
    low, high = keys.min(axis=0), keys.max(axis=0)
    step = np.where(high > low, (high - low) / (2**bits - 1), 1)
    return low + np.rint((keys - low) / step) * step


def key_error(keys: np.ndarray, instead: np.ndarray) -> float:
    """Mean over tokens of |instead - key| / |key|; a row of NaN (no key at all) counts as zeros, so as 1."""
    difference = np.linalg.norm(np.nan_to_num(instead) - keys, axis=1)
    return float((difference / np.linalg.norm(keys, axis=1)).mean())


def represented(walk: Walkthrough) -> np.ndarray:
    """(tokens, head_dim) the merged key that stands for each token."""
    place = walk.tokens["pivot"].to_numpy() - int(walk.tokens["position"].iloc[0])
    return walk.merged[place]


def _best_window(bounds: np.ndarray, length: int) -> tuple[int, int] | None:
    """The run of whole sets, at most `length` tokens, in which most sets of more than one token lie; None for fewer
    than two of them. Of equals the one that merges more, then the earlier."""
    best, found = (1, length), None
    for first, start in enumerate(bounds[:-1]):
        last = int(np.searchsorted(bounds, start + length, side="right")) - 1
        sizes = np.diff(bounds[first : last + 1])
        score = (int((sizes > 1).sum()), int((sizes - 1).sum()))
        if score > best:
            best, found = score, (int(start), int(bounds[last]))
    return found


def _of_window(
    unit: np.ndarray, norm: np.ndarray, attention: np.ndarray, bounds: np.ndarray, threshold: float
) -> Walkthrough:
    start, stop = int(bounds[0]), int(bounds[-1])
    keys, position = unit[start:stop] * norm[start:stop, None], np.arange(start, stop)
    anchor = bounds[np.searchsorted(bounds, position, side="right")] - 1
    pivot, weight = np.zeros_like(position), np.zeros(len(position), np.float32)
    merged = np.full_like(keys, np.nan)
    for last in np.unique(anchor):
        members = np.flatnonzero(anchor == last)
        leader = members[np.argmax(attention[start:stop][members])]
        weight[members] = set_weights(keys[members], int(np.flatnonzero(members == leader)[0]))
        pivot[members] = start + leader
        merged[leader] = weight[members] @ keys[members]
    table = pd.DataFrame(
        {"position": position, "set": anchor, "attention": attention[start:stop], "pivot": pivot, "weight": weight}
    )
    return Walkthrough(threshold, table, unit[start:stop] @ unit[start:stop].T, keys, merged)


def set_weights(keys: np.ndarray, pivot: int) -> np.ndarray:
    """(members,) weights of one set by the Gaussian kernel around `pivot`, sigma the mean distance over sqrt(2)."""
    distance = np.linalg.norm(keys - keys[pivot], axis=1)
    sigma = distance.sum() / max(1, len(keys) - 1) / math.sqrt(2)
    weight = kernel(distance, sigma) if sigma > 0 else np.ones(len(keys))
    return weight / weight.sum()
