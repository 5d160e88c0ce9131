"""How far merging sets would shrink each layer at a threshold, and whether that lasts from prompt to prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.merge_sets import consecutive_sets, set_count
from kvlab.trace.reader import Run

PAPER_THRESHOLD = 0.75  # KVMerger, section 6.1
MOST_TOKENS = 4096  # the paper's samples have about as many


def ratios(
    run: Run, heads: Iterable[tuple[int, int]], thresholds: Sequence[float] = (PAPER_THRESHOLD,)
) -> pd.DataFrame:
    """Merging sets over prompt tokens, of the first `MOST_TOKENS`: columns layer, head, threshold, sets, ratio.

    Every token may merge: what the method protects (recent and heavy tokens) is a choice made afterwards.
    """
    tokens, rows = min(run.record.prompt_tokens, MOST_TOKENS), []
    for layer, head in heads:
        unit = run.keys(layer, head)[0][:tokens].astype(np.float32)
        for threshold in thresholds:
            sets = set_count(consecutive_sets(unit, threshold))
            rows.append({"layer": layer, "head": head, "threshold": threshold, "sets": sets, "ratio": sets / tokens})
    return pd.DataFrame(rows, columns=["layer", "head", "threshold", "sets", "ratio"])


def persistence(table: pd.DataFrame) -> np.ndarray:
    """Rank correlation (Spearman) of every two prompts over the rows of `table` (layer or head x prompt).

    (prompts, prompts); NaN for a prompt whose rows are all equal.
    """
    return table.corr(method="spearman").to_numpy()
