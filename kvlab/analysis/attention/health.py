"""Numerical health of caches: slots that are not finite, vectors that grew in a merge, guards that stepped in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.analysis.comparison.compare import unique_labels
from kvlab.trace.reader import Run

GROWTHS = ("key_growth", "value_growth")
COLUMNS = ("step", *GROWTHS, "non_finite", "guard_activations")


def over_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a compressed run and step, over all layers and KV heads.

    Columns: label, method, step; key_growth and value_growth, the most that any slot's vector grew over the longest of
    its parts (1: none did; missing: not recorded); non_finite, slots that hold an infinity or no number after the step
    (missing: not recorded); guard_activations in the step. A run without recorded steps has no rows.
    """
    parts = [
        _of_run(run.select("steps", columns=COLUMNS)).assign(label=label, method=run.record.method)
        for run, label in zip(runs, unique_labels(runs), strict=True)
        if run.record.method != "full"
    ]
    names = ["label", "method", *COLUMNS]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


def _of_run(steps: pd.DataFrame) -> pd.DataFrame:
    # A growth without end is of a slot that is not finite, which has its own column.
    finite = steps.assign(**{name: steps[name].replace(np.inf, np.nan) for name in GROWTHS})
    groups = finite.groupby("step")
    counts = groups[["non_finite", "guard_activations"]].sum(min_count=1)
    return groups[list(GROWTHS)].max().join(counts).reset_index()
