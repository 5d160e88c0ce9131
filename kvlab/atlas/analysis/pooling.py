"""Pooled windows of one head: which span of the text each slot stands for, and how often it was pooled."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import Lineage

MOST_SLOTS = 400


def spans(lineage: Lineage, step: int, window: int) -> pd.DataFrame:
    """One row a live slot after `step`: position, first and last token in it, tokens, and generation.

    `generation` is the least number of times its tokens were pooled: windows of `window` need ceil(log(tokens) /
    log(window)) rounds for so many. Rounds inside one step leave a single event each, so the least is what is known.
    """
    owner = lineage.owners(step)
    alive = np.flatnonzero(lineage.alive(step))
    inside = np.flatnonzero(owner >= 0)
    order = inside[np.argsort(owner[inside], kind="stable")]
    slots, start, counts = np.unique(owner[order], return_index=True, return_counts=True)
    first, last = np.minimum.reduceat(order, start), np.maximum.reduceat(order, start)
    table = pd.DataFrame({"position": slots, "first": first, "last": last, "tokens": counts})
    table = table[table["position"].isin(alive)].reset_index(drop=True)
    return table.assign(generation=[_generation(tokens, window) for tokens in table["tokens"]])


def age_and_tokens(spans: pd.DataFrame) -> float:
    """Spearman's rank correlation of a slot's age (how far back it begins) with the tokens it stands for."""
    if spans["tokens"].nunique() < 2:
        return math.nan
    return float((-spans["first"]).rank().corr(spans["tokens"].rank()))


def _generation(tokens: int, window: int) -> int:
    return math.ceil(round(math.log(tokens) / math.log(window), 6)) if tokens > 1 else 0
