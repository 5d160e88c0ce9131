"""How much of a token's value remains in its slot after repeated merges, and the half-life in merges."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views.frames.lineage import Lineage


def influence(lineage: Lineage, events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(share, merges): both (steps, tokens), float32 and int32, after each recorded step.

    `share` is the weight of each token's value in the value of its slot: 1 on its own, multiplied by the value weight
    of every merge its slot goes through as source, and by one minus the sources' weights as target; 0 once evicted, NaN
    before it was read. `merges` counts the merges of the slot it was in.
    """
    count = len(lineage.steps)
    tokens = lineage.tokens
    shares = np.ones((count, tokens), np.float32)
    merges = np.zeros((count, tokens), np.int32)
    share = np.ones(tokens)
    passed = np.zeros(tokens, np.int32)
    owner = np.arange(tokens)
    by_step = {int(step): group for step, group in events.groupby("step")}
    for row, step in enumerate(lineage.steps.tolist()):
        if (group := by_step.get(step)) is not None:
            share, passed, owner = _apply(group, share, passed, owner)
        shares[row] = np.where(lineage.birth <= step, share, np.nan)
        merges[row] = passed
    return shares, merges


def _apply(
    group: pd.DataFrame, share: np.ndarray, passed: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens = len(share)
    # As in the lineage, of several targets follow the one with the largest weight.
    main = group.sort_values("value_weight", kind="stable").drop_duplicates("source", keep="last")
    joined = group[group["target"] >= 0]
    own = np.ones(tokens)
    np.subtract.at(own, joined["target"].to_numpy(np.int64), joined["value_weight"].to_numpy(np.float64))
    takes = np.zeros(tokens, bool)
    takes[joined["target"].to_numpy(np.int64)] = True
    source = main["source"].to_numpy(np.int64)
    target = main["target"].to_numpy(np.int64)
    factor = own.clip(0, 1)
    goes = np.arange(tokens)
    factor[source] = np.where(target >= 0, main["value_weight"].to_numpy(np.float64).clip(0, 1), 0)
    goes[source] = target
    moved = takes.copy()
    moved[source] = target >= 0
    held = owner >= 0
    at = owner.clip(0)
    share = np.where(held, share * factor[at], 0.0)
    passed = passed + (held & moved[at])
    return share, passed, np.where(held, goes[at], -1)


def decay_by_merges(share: np.ndarray, merges: np.ndarray) -> pd.DataFrame:
    """Share of a token left in its slot: columns merges, low (quartile), share (median), high, tokens.

    Covers every (step, token) still alive; arguments come from `influence`.
    """
    alive = np.nan_to_num(share) > 0
    table = pd.DataFrame({"merges": merges[alive], "share": share[alive]})
    groups = table[table["merges"] > 0].groupby("merges")["share"]
    quarters = groups.quantile([0.25, 0.5, 0.75]).unstack()
    if quarters.empty:
        return pd.DataFrame(columns=["merges", "low", "share", "high", "tokens"])
    quarters.columns = ["low", "share", "high"]
    return quarters.assign(tokens=groups.size()).reset_index()


def half_life(decay: pd.DataFrame) -> float:
    """Number of merges after which half of a token remains, interpolated on the log of the share.

    Infinite if more than half remains at the end, NaN if nothing was merged.
    """
    if decay.empty:
        return float("nan")
    merges = np.concatenate([[0.0], decay["merges"].to_numpy(float)])
    share = np.concatenate([[1.0], decay["share"].to_numpy(float)])
    below = np.flatnonzero(share <= 0.5)
    if not len(below):
        return float("inf")
    after = below[0]
    if share[after] == 0:  # log of 0: no interpolation
        return float(merges[after - 1])
    fall = np.log(share[after - 1]) - np.log(share[after])
    return float(merges[after - 1] + (merges[after] - merges[after - 1]) * np.log(share[after - 1] / 0.5) / fall)


def members_over_steps(lineage: Lineage, share: np.ndarray, texts: list[str], slot: int, step: int) -> pd.DataFrame:
    """Share of each token that `slot` holds after `step`, per step, largest first: token, text, step, share."""
    inside = np.flatnonzero(lineage.owners(step) == slot)
    row = int(np.searchsorted(lineage.steps, step))
    shown = inside[np.argsort(-share[row, inside], kind="stable")]
    rows = slice(0, row + 1)
    return pd.DataFrame(
        {
            "token": np.repeat(shown, row + 1),
            "text": np.repeat([texts[token] for token in shown], row + 1),
            "step": np.tile(lineage.steps[rows], len(shown)),
            "share": share[rows][:, shown].T.ravel(),
        }
    ).dropna()


def weighted_tree(tree: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """`lineage_tree` with `flow`, the source's value weight times its attention at the merge (Sankey width)."""
    mass = events[["source", "target", "mass_source"]].drop_duplicates(["source", "target"])
    joined = tree.merge(mass, on=["source", "target"], how="left")
    return joined.assign(flow=joined["value_weight"] * joined["mass_source"])
