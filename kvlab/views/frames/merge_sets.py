"""Merge sets of consecutive similar keys at any threshold, and outlines of sets on a similarity map."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views.frames.lineage import Lineage


def spans(anchor: np.ndarray) -> pd.DataFrame:
    """Sets of more than one token, from `consecutive_sets`: columns start, stop, size."""
    starts = np.flatnonzero(np.diff(anchor, prepend=-1))
    stops = np.append(starts[1:], len(anchor))
    table = pd.DataFrame({"start": starts, "stop": stops, "size": stops - starts})
    return table[table["size"] > 1].reset_index(drop=True)


def as_outlines(anchor: np.ndarray, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """Sets that overlap the window, as squares on the diagonal, with the columns of `outlines`.

    Only sets over at least `smallest` tokens (one map cell), the largest first.
    """
    sets = spans(anchor)
    meets = (sets["stop"] > window[0]) & (sets["start"] < window[1]) & (sets["size"] >= smallest)
    shown = sets[meets].sort_values("size", ascending=False, kind="stable")
    table = shown.assign(
        slot=shown["stop"] - 1, pivot_start=shown["start"], pivot_stop=shown["stop"], reach=shown["size"]
    )
    names = ["slot", "start", "stop", "pivot_start", "pivot_stop", "votes", "reach"]
    return table.rename(columns={"size": "votes"})[names].reset_index(drop=True)


def merge_sets(lineage: Lineage, step: int) -> pd.DataFrame:
    """One row per token that shares its slot after `step`: columns slot, position, votes (of the slot)."""
    owner = lineage.owners(step)
    votes = np.bincount(owner[owner >= 0], minlength=lineage.tokens)
    shared = np.flatnonzero((owner >= 0) & (votes[owner] > 1))
    table = pd.DataFrame({"slot": owner[shared], "position": shared, "votes": votes[owner[shared]]})
    return table.sort_values(["slot", "position"]).reset_index(drop=True)


def outlines(sets: pd.DataFrame, window: tuple[int, int], smallest: int = 1) -> pd.DataFrame:
    """The merge sets as rectangles on the map: contiguous runs of a slot's tokens against the run that holds its pivot.

    Columns: slot, start, stop (the run), pivot_start, pivot_stop, votes, reach (tokens spanned); the pivot's own run is
    a square on the diagonal. Only those that overlap `window` and span `smallest` tokens (a cell), most votes first.
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


BAND = 16  # offsets compared for all tokens at once; longer sets are followed one by one
CHUNK = 64


def consecutive_sets(unit: np.ndarray, threshold: float) -> np.ndarray:
    """(tokens,) anchor of each token's merge set, from unit keys (tokens, head_dim); KVMerger, Algorithm 1.

    Scans from the last token to the first: a set absorbs the tokens before its anchor while their cosine with the
    anchor is above `threshold`; the first that fails becomes the next anchor.
    """
    units = unit.astype(np.float32)
    reach = _reach_in_band(units, threshold).tolist()
    anchor = np.arange(len(units))
    place = len(units) - 1
    while place >= 0:
        length = reach[place] if reach[place] < BAND else _reach(units, place, threshold)
        anchor[place - length : place + 1] = place
        place -= length + 1
    return anchor


def set_count(anchor: np.ndarray) -> int:
    """Number of sets, i.e. slots left after merging."""
    return int((anchor == np.arange(len(anchor))).sum())


def _reach_in_band(units: np.ndarray, threshold: float) -> np.ndarray:
    """How many of the `BAND` tokens before each token would join its set if it were an anchor."""
    reach = np.zeros(len(units), np.int64)
    growing = np.arange(1, len(units))
    for offset in range(1, BAND + 1):
        growing = growing[growing >= offset]
        cosine = np.einsum("td,td->t", units[growing], units[growing - offset])
        growing = growing[cosine > threshold]
        reach[growing] = offset
    return reach


def _reach(units: np.ndarray, place: int, threshold: float) -> int:
    """How many tokens before `place` join its set, by growing chunks."""
    length = 0
    size = CHUNK
    while length < place:
        start = max(0, place - length - size)
        unlike = np.flatnonzero(units[start : place - length] @ units[place] <= threshold)
        if len(unlike):
            return place - (start + int(unlike[-1])) - 1
        length = place - start
        size = 2 * size
    return length
