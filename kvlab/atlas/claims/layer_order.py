"""KVMerger, figures 3b and 9: which layers merging shrinks most is a property of the model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.head_states import readable_heads, spread_heads
from kvlab.atlas.analysis.compression_ratio import MOST_TOKENS, PAPER_THRESHOLD, persistence, ratios
from kvlab.atlas.evidence import Evidence
from kvlab.atlas.prompt_means import basis_of
from kvlab.common.formatting import mean_words, prompts
from kvlab.common.intervals import Interval, pairs_interval
from kvlab.figures.base.words import two_digits
from kvlab.results.verdict import OPEN, Claim, Threshold, judge
from kvlab.trace.reader import Run

SAME = "Which layers merging shrinks most is a property of the model: it stays the same from prompt to prompt."
ORDER = Threshold(0.8, "about where four pairs of layers of five are in the same order in two prompts")
VECTORS = 120_000


def head_rows(run: Run) -> pd.DataFrame:
    """One row per head: `ratio` of merge sets to prompt tokens at the paper's threshold."""
    heads = readable_heads(run, spread_heads(run, vectors=VECTORS, tokens=MOST_TOKENS))
    return ratios(run, heads)[["layer", "head", "ratio"]]


EVIDENCE = Evidence("layer-order", head_rows)


def same(rows: pd.DataFrame) -> Claim:
    """Rank correlation of two prompts' layers, over all pairs of prompts."""
    layers = _correlations(rows, ["layer"])
    basis = basis_of(rows)
    if len(layers) < 2 or np.isnan(layers).any():
        why = f"{prompts(basis.prompts).capitalize()}: it takes 2, and layers that differ."
        return Claim(SAME, OPEN, why, basis, threshold=ORDER)
    found = pairs_interval(layers)
    finding = (
        f"The rank correlation of two prompts' layers is {_pair_words(layers)} on average, of their heads "
        f"{_pair_words(_correlations(rows, ['layer', 'head']))} (sets at a cosine of {PAPER_THRESHOLD})."
    )
    over = Interval(found.mean, found.low, found.high, basis.prompts, found.samples)
    return judge(SAME, over, ORDER, basis, finding)


def _correlations(rows: pd.DataFrame, place: list[str]) -> np.ndarray:
    if rows.empty:
        return np.zeros((0, 0))
    return persistence(rows.groupby([*place, "prompt"])["ratio"].mean().unstack("prompt"))


def _pair_words(correlations: np.ndarray) -> str:
    """Mean over all pairs of prompts; a single pair has no interval."""
    if np.isnan(correlations).any():
        return "not defined"
    one = pairs_interval(correlations)
    if one.n == 2:
        return f"{two_digits(one.mean)} (one pair of prompts, n = 2)"
    return mean_words(one.mean, one.low, one.high, one.n, two_digits)
