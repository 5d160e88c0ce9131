"""Compression of each layer by merge sets at a threshold, and its persistence over prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.merge_sets import consecutive_sets, set_count
from kvlab.trace.reader import Run

PAPER_THRESHOLD = 0.75  # KVMerger, section 6.1
MOST_TOKENS = 4096  # about the length of the paper's samples


def ratios(
    run: Run, heads: Iterable[tuple[int, int]], thresholds: Sequence[float] = (PAPER_THRESHOLD,)
) -> pd.DataFrame:
    """Ratio of merge sets to prompt tokens, for the first `MOST_TOKENS`: columns layer, head, threshold, sets, ratio.

    Every token may merge; protecting recent and heavy tokens is a later choice of the method.
    """
    tokens, rows = min(run.record.prompt_tokens, MOST_TOKENS), []
    for layer, head in heads:
        unit = run.keys(layer, head)[0][:tokens].astype(np.float32)
        for threshold in thresholds:
            sets = set_count(consecutive_sets(unit, threshold))
            rows.append({"layer": layer, "head": head, "threshold": threshold, "sets": sets, "ratio": sets / tokens})
    return pd.DataFrame(rows, columns=["layer", "head", "threshold", "sets", "ratio"])


def persistence(table: pd.DataFrame) -> np.ndarray:
    """(prompts, prompts) Spearman correlation of every two prompts over the rows of `table`; NaN for constant
    prompts."""
    return table.corr(method="spearman").to_numpy()
