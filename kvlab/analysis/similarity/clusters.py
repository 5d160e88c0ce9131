"""Sets of consecutive similar keys at any threshold as outlines on a map, and how many slots each threshold leaves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import Lineage
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


def merge_sets(lineage: Lineage, step: int) -> pd.DataFrame:
    """One row a token that shares its slot with others after `step`: columns slot, position, votes (of the slot)."""
    owner = lineage.owners(step)
    votes = np.bincount(owner[owner >= 0], minlength=lineage.tokens)
    shared = np.flatnonzero((owner >= 0) & (votes[owner] > 1))
    table = pd.DataFrame({"slot": owner[shared], "position": shared, "votes": votes[owner[shared]]})
    return table.sort_values(["slot", "position"]).reset_index(drop=True)


def outlines(sets: pd.DataFrame, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """The merge sets as rectangles on the map: unbroken runs of one slot's tokens against the run its pivot is in.

    Columns: slot, start, stop (the run), pivot_start, pivot_stop, votes, reach (over how many tokens); a run with the
    pivot is a square on the diagonal. Only what meets `window` and reaches over at least `smallest` tokens (a cell of
    the map), the largest slots first.
    """
    runs = _runs(sets)
    home = runs[(runs["start"] <= runs["slot"]) & (runs["slot"] < runs["stop"])].set_index("slot")
    table = runs.assign(
        pivot_start=runs["slot"].map(home["start"]).fillna(runs["slot"]).astype(int),
        pivot_stop=runs["slot"].map(home["stop"]).fillna(runs["slot"] + 1).astype(int),
    )
    own = table["start"] == table["pivot_start"]
    meets = (table["stop"] > window[0]) & (table["start"] < window[1])
    meets &= (table["pivot_stop"] > window[0]) & (table["pivot_start"] < window[1])
    reach = table[["stop", "pivot_stop"]].max(axis=1) - table[["start", "pivot_start"]].min(axis=1)
    table = table.assign(reach=reach)
    shown = table[meets & (reach >= smallest) & ~(own & (table["stop"] - table["start"] == 1))]
    return shown.sort_values("votes", ascending=False, kind="stable").reset_index(drop=True)


def _runs(sets: pd.DataFrame) -> pd.DataFrame:
    position, slot, votes = (sets[name].to_numpy(np.int64) for name in ("position", "slot", "votes"))
    breaks = np.flatnonzero((np.diff(position) != 1) | (np.diff(slot) != 0)) + 1
    first = np.concatenate([np.zeros(min(1, len(sets)), np.int64), breaks])
    last = np.concatenate([breaks, np.full(min(1, len(sets)), len(sets))]) - 1
    return pd.DataFrame(
        {"slot": slot[first], "start": position[first], "stop": position[last] + 1, "votes": votes[first]}
    )
