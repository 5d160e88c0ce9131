"""Who went into one slot: the tree of a slot's tokens, for the river of its merges."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage.fold import KINDS, Lineage


def members(lineage: Lineage, slot: int, step: int) -> np.ndarray:
    """Positions of the tokens living in `slot` after `step`, increasing; empty where the slot is not alive."""
    return np.flatnonzero(lineage.owners(step) == slot)


def merged_slots(lineage: Lineage, step: int, limit: int = 200) -> dict[int, int]:
    """Votes of the slots that stand for more than one token after `step`, by position, the most votes first."""
    votes = lineage.votes(step)
    order = np.argsort(-votes, kind="stable")[:limit]
    return {int(position): int(votes[position]) for position in order if votes[position] > 1}


def merged_count(lineage: Lineage, step: int) -> int:
    """How many slots stand for more than one token after `step`."""
    return int((lineage.votes(step) > 1).sum())


def lineage_tree(lineage: Lineage, events: pd.DataFrame, texts: list[str], slot: int, step: int) -> pd.DataFrame:
    """One row a merge on the way into `slot` by `step`, those next to it first, then the largest value weights.

    Columns: source, source_text, target, target_text, step, kind, votes (tokens carried over), similarity,
    value_weight, depth (merges between the source and the slot).
    """
    inside = members(lineage, slot, step)
    joined = inside[(lineage.leave[inside] <= step) & (inside != slot)]
    rows = pd.DataFrame({"source": joined, "target": lineage.parent[joined]})
    rows = rows.assign(
        source_text=[texts[position] for position in rows["source"]],
        target_text=[texts[position] for position in rows["target"]],
        step=lineage.leave[joined],
        kind=np.array(KINDS)[lineage.kind[joined]],
        depth=_depths(lineage, joined, slot),
    )
    weights = events[["source", "target", "similarity", "value_weight", "votes_source"]].drop_duplicates(
        ["source", "target"]
    )
    rows = rows.merge(weights, on=["source", "target"], how="left").rename(columns={"votes_source": "votes"})
    return rows.sort_values(["depth", "value_weight"], ascending=[True, False]).reset_index(drop=True)


def _depths(lineage: Lineage, sources: np.ndarray, slot: int) -> np.ndarray:
    depth, here = np.zeros(len(sources), np.int64), sources.copy()
    while len(here) and (here != slot).any():
        moving = here != slot
        here = np.where(moving, lineage.parent[here], here)
        depth += moving
    return depth
