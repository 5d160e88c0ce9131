"""Statistics of events: departures by kind, similarity of merged slots, and votes per slot."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views.frames.lineage import KINDS

EVENT_KINDS = KINDS[1:]


def events_over_steps(events: pd.DataFrame) -> pd.DataFrame:
    """Events per step and kind: columns step, kind, count."""
    return events.groupby(["step", "kind"], observed=True).size().rename("count").reset_index()


def events_by_head(events: pd.DataFrame) -> pd.DataFrame:
    """Events per layer and KV head: columns layer, head, evict, merge, pool, merged_share (of all departures)."""
    counts = events.groupby(["layer", "head", "kind"]).size().unstack("kind", fill_value=0)
    counts = counts.reindex(columns=list(EVENT_KINDS), fill_value=0)
    joined = counts["merge"] + counts["pool"]
    return counts.assign(merged_share=joined / counts.sum(axis=1)).reset_index().rename_axis(columns=None)


def similarity_distribution(events: pd.DataFrame, bins: int = 80) -> pd.DataFrame:
    """Histogram of source-target similarity over all merges and pools: columns similarity (bin centre), kind, count."""
    joined = events[events["target"] >= 0].dropna(subset=["similarity"])
    edges = np.linspace(-1, 1, bins + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    parts = []
    for kind, group in joined.groupby("kind", observed=True):
        counts = np.histogram(group["similarity"].clip(-1, 1), edges)[0]
        parts.append(pd.DataFrame({"similarity": centres, "kind": kind, "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["similarity", "kind", "count"])


def final_votes(events: pd.DataFrame) -> pd.DataFrame:
    """Slots that hold more than one token at the end: columns layer, head, slot, votes, step of the last merge."""
    # With events in step order, the last row of a target is its last merge.
    events = events.sort_values("step", kind="stable") if not events["step"].is_monotonic_increasing else events
    slots = _slot_numbers(events, "target")
    left = _slot_numbers(events, "source")
    joined = (events["target"] >= 0).to_numpy()
    last = np.unique(slots[joined][::-1], return_index=True)[1]
    rows = np.flatnonzero(joined)[::-1][last]
    rows = np.sort(rows[~np.isin(slots[rows], left)])
    found = events.iloc[rows][["layer", "head", "target", "votes_after", "step"]]
    return found.rename(columns={"target": "slot", "votes_after": "votes"}).reset_index(drop=True)


def _slot_numbers(events: pd.DataFrame, column: str) -> np.ndarray:
    """A unique number per (layer, head, position), the same for a slot as source and as target."""
    layer, head, position = (events[name].to_numpy(np.int64) for name in ("layer", "head", column))
    heads = head.max(initial=0) + 1
    positions = events[["source", "target"]].max(axis=None) + 1 if len(events) else 1
    return (layer * heads + head) * positions + position


def votes_distribution(slots: pd.DataFrame) -> pd.DataFrame:
    """Number of slots per vote count: columns votes (rounded), slots; from `final_votes`."""
    votes = slots["votes"].round().astype(int)
    return votes.value_counts().sort_index().rename_axis("votes").rename("slots").reset_index()


def mass_balance(events: pd.DataFrame) -> pd.DataFrame:
    """Mass of each merged group before and after its step, the largest absolute sag first.

    Columns: step, layer, head, slot, sources, mass_before (sources and target together), mass_after, sag, votes. A
    group on the diagonal lost nothing; below it, the merge caused attention sag.
    """
    joined = events[events["target"] >= 0].dropna(subset=["mass_after"])
    slots = _slot_numbers(joined, "target")
    keys = joined["step"].to_numpy(np.int64) * (slots.max(initial=0) + 1) + slots
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    table = joined.iloc[first].rename(columns={"votes_after": "votes"})
    mass = joined["mass_source"].to_numpy(np.float64)
    before = np.bincount(group, weights=mass) + table["mass_target"]
    table = table.assign(sources=np.bincount(group), mass_before=before)
    order = table["sag"].abs().sort_values(ascending=False, kind="stable").index
    columns = ["step", "layer", "head", "target", "sources", "mass_before", "mass_after", "sag", "votes"]
    return table.loc[order, columns].rename(columns={"target": "slot"}).reset_index(drop=True)


def departures_from_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """As `events_over_steps`, from the counts in `steps`, for runs without events. Pools count as merges."""
    counts = steps.groupby("step")[["evicted", "merged"]].sum().rename(columns={"evicted": "evict", "merged": "merge"})
    table = counts.rename_axis(columns="kind").stack().rename("count").reset_index()
    return table[table["count"] > 0].reset_index(drop=True)
