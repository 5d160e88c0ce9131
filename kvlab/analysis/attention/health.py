"""Numerical health of caches: non-finite slots, norm growth in merges, and guard activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run
from kvlab.views.frames.compare import unique_labels

GROWTHS = ("key_growth", "value_growth")
COLUMNS = ("step", *GROWTHS, "non_finite", "guard_activations")


def over_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per compressed run and step, over all layers and KV heads.

    Columns: label, method, step; key_growth and value_growth, the largest ratio of a slot's norm to the longest of its
    parts (1: no growth; missing: not recorded); non_finite, slots with an infinity or NaN after the step (missing: not
    recorded); guard_activations in the step. A run without recorded steps has no rows.
    """
    parts = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        if run.record.method != "full":
            steps = run.select("steps", columns=COLUMNS)
            # Infinite growth belongs to a non-finite slot, which has its own column.
            groups = steps.replace(dict.fromkeys(GROWTHS, np.inf), np.nan).groupby("step")
            counts = groups[["non_finite", "guard_activations"]].sum(min_count=1)
            table = groups[list(GROWTHS)].max().join(counts).reset_index()
            parts.append(table.assign(label=label, method=run.record.method))
    names = ["label", "method", *COLUMNS]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)
