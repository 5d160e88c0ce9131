"""Sets of consecutive similar keys at any threshold as outlines on a map, and how many slots each threshold leaves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.consecutive_sets import consecutive_sets, set_count

THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def spans(anchor: np.ndarray) -> pd.DataFrame:
    """The sets of more than one token, from `consecutive_sets`: columns start, stop, size."""
    starts = np.flatnonzero(np.diff(anchor, prepend=-1))
    stops = np.append(starts[1:], len(anchor))
    table = pd.DataFrame({"start": starts, "stop": stops, "size": stops - starts})
    return table[table["size"] > 1].reset_index(drop=True)


def as_outlines(anchor: np.ndarray, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """The sets that meet the window, as squares on the diagonal, in the columns of `outlines.outlines`.

    Only those over at least `smallest` tokens (a cell of the map), the largest first.
    """
    sets = spans(anchor)
    meets = (sets["stop"] > window[0]) & (sets["start"] < window[1]) & (sets["size"] >= smallest)
    shown = sets[meets].sort_values("size", ascending=False, kind="stable")
    table = shown.assign(
        slot=shown["stop"] - 1, pivot_start=shown["start"], pivot_stop=shown["stop"], reach=shown["size"]
    )
    names = ["slot", "start", "stop", "pivot_start", "pivot_stop", "votes", "reach"]
    return table.rename(columns={"size": "votes"})[names].reset_index(drop=True)


def at_thresholds(unit: np.ndarray, thresholds: tuple[float, ...] = THRESHOLDS) -> pd.DataFrame:
    """One row a threshold, from unit keys: slots that would be left, their share of the tokens, the largest set."""
    rows = []
    for threshold in thresholds:
        anchor = consecutive_sets(unit, threshold)
        sizes = spans(anchor)["size"]
        slots = set_count(anchor)
        share = slots / max(len(anchor), 1)
        rows.append(
            {"threshold": threshold, "slots": slots, "share": share, "largest": int(sizes.max()) if len(sizes) else 1}
        )
    return pd.DataFrame(rows)
