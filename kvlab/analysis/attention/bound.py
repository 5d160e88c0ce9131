"""KeepKV's bound on the output perturbation (theorem 5), computed from what a run recorded of one head.

The theorem, of one query head: where every score is predicted to a relative error of at most epsilon < 1, and values
differ by at most gamma, merging changes the output by less than 2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2. A run
records the attention-weighted mean of that relative error (`score_error`), not the largest, and relative changes of the
output; so the bound is drawn with the mean and divided by the length of the true output. It covers merging only: what
was dropped is outside of it. So is what a merge costs query heads that share a slot, even with every score rightly
predicted (docs/grouped-queries.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.float16 import as_float32, by_blocks, room_for, sums_by
from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

MOST_PAIRS = 16_000_000
ROWS_AT_ONCE = 512
COLUMNS = ("step", "sag", "perturbation", "output_error", "regret", "merged", "epsilon", "gamma", "bound", "flag")


class HeadArrays(NamedTuple):
    """Unit values (tokens, head_dim), their norms (tokens,) and true masses (steps, tokens), float16 as recorded.

    Slot masses (steps, tokens) are only there where a run predicts no scores.
    """

    unit: np.ndarray
    norm: np.ndarray
    true_mass: np.ndarray
    slot_mass: np.ndarray | None


def read_arrays(run: Run, layer: int, head: int, predicts: bool = False) -> HeadArrays | None:
    """What the bound needs of one head, which `predicts` scores or not; None where the run did not record it."""
    try:
        unit, norm = run.values(layer, head)
        true, slot = (run.true_mass(layer, head), None) if predicts else run.attention(layer, head)
    except UserError:
        return None
    return HeadArrays(unit, norm, true, slot)


def predicts_scores(steps: pd.DataFrame) -> bool:
    """Whether a method has scores of its own for what will be asked, given rows of `steps`."""
    return bool(steps["score_error"].notna().any())


def value_spread(unit: np.ndarray, norm: np.ndarray, merged: np.ndarray, mean: np.ndarray) -> float:
    """gamma: the largest distance of any of the `merged` tokens' values (positions) to any value, NaN without one.

    Values are `unit` (tokens, head_dim) times `norm` (tokens,). Every pair is looked at up to `MOST_PAIRS`; beyond, the
    two largest distances to their `mean` (head_dim,) are added, which is never less (triangle inequality).
    """
    if not len(merged):
        return float("nan")
    if len(merged) * len(unit) > MOST_PAIRS:
        away = distance_to_mean(unit, norm, mean)
        return float(away[merged].max() + away.max())
    values = as_float32(unit) * as_float32(norm)[:, None]
    some, squares, largest = values[merged], np.einsum("td,td->t", values, values), 0.0
    for start in range(0, len(some), ROWS_AT_ONCE):
        rows = some[start : start + ROWS_AT_ONCE]
        squared = (rows**2).sum(1)[:, None] + squares - 2 * rows @ values.T
        largest = max(largest, float(squared.max()))
    return float(np.sqrt(largest))


def distance_to_mean(unit: np.ndarray, norm: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """(tokens,) distance of each value, `unit` times `norm`, to the `mean` (head_dim,) of all.

    Squared term by term: at 128k tokens the values themselves would be another copy of 64 MB.
    """
    squares, room = np.empty(len(unit), np.float32), room_for(unit.shape[1])
    for block in by_blocks(len(unit)):
        some, length = as_float32(unit[block], room), as_float32(norm[block])
        squares[block] = np.einsum("td,td->t", some, some) * length**2 - 2 * length * (some @ mean) + mean @ mean
    return np.sqrt(squares.clip(0))


def persistence_error(slot_mass: np.ndarray) -> np.ndarray:
    """(steps,) relative error of expecting each slot to get again what it got at the step before; NaN for the first.

    The simplest predictor, which every method that merges by present attention makes use of: the absolute errors
    over the slots alive before, divided by what they really got; NaN where they got nothing.
    """
    slot_mass = as_float32(slot_mass)
    before, now = slot_mass[:-1], slot_mass[1:]
    alive = before > 0
    received = (now * alive).sum(1)
    error = (np.abs(now - before) * alive).sum(1) / np.where(received > 0, received, np.nan)
    return np.concatenate([[np.nan], error])


def keepkv_bound(epsilon: np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """2 epsilon (1 + epsilon) gamma / (1 - epsilon)^2 (KeepKV, theorem 5); NaN where epsilon is 1 or more."""
    known = np.where(epsilon < 1, epsilon, np.nan)
    return 2 * known * (1 + known) * gamma / (1 - known) ** 2


def bound_over_steps(
    steps: pd.DataFrame, events: pd.DataFrame, arrays: HeadArrays | None, query_heads: int = 1
) -> pd.DataFrame:
    """One row a step of one head, columns `COLUMNS`: what happened to its attention, and the bound, relative to |o|.

    `epsilon` is the method's own where it predicts (`score_error`), else that of `persistence_error`. `flag` is
    "above" where the output changed by more than the bound although nothing was ever dropped, "above, tokens dropped"
    where it did and something was, which the theorem does not cover, "above, heads share slots" where `query_heads` to
    a KV head are more than the one it covers; empty where it did not or no bound exists.
    """
    steps = steps.sort_values("step")
    changed = events.groupby("step")["perturbation"].max().reindex(steps["step"])
    table = steps[["step", "output_error", "regret", "merged"]].reset_index(drop=True)
    table = table.assign(sag=steps["sag"].abs().to_numpy(), perturbation=changed.to_numpy())
    count = len(table)
    epsilon, gamma, length = steps["score_error"].to_numpy(np.float64), float("nan"), np.full(count, np.nan)
    if arrays is not None:
        rows, tokens = min(count, len(arrays.true_mass)), len(arrays.unit)
        sums = sums_by(arrays.true_mass[:rows], arrays.unit, arrays.norm)
        length[:rows] = np.linalg.norm(sums[:-1], axis=1)
        gamma = value_spread(arrays.unit, arrays.norm, _merged(events, tokens), sums[-1] / tokens)
        if arrays.slot_mass is not None and np.isnan(epsilon).all():
            epsilon = np.append(persistence_error(arrays.slot_mass[:rows]), np.full(count - rows, np.nan))
    bound = keepkv_bound(epsilon, gamma) / np.where(length > 0, length, np.nan)
    return table.assign(epsilon=epsilon, gamma=gamma, bound=bound, flag=_flags(table, bound, query_heads))[
        list(COLUMNS)
    ]


def _merged(events: pd.DataFrame, tokens: int) -> np.ndarray:
    """Positions that are source or target of any of these events that merges, increasing."""
    source, target = events["source"].to_numpy(), events["target"].to_numpy()
    there, merges = np.zeros(tokens, bool), target >= 0
    there[source[merges]] = there[target[merges]] = True
    return np.flatnonzero(there)


def bound_by_head(run: Run, layers: list[int]) -> pd.DataFrame:
    """`bound_over_steps` of every KV head of these layers, with columns layer and head."""
    parts = []
    for layer in layers:
        for head in range(run.record.model.num_key_value_heads):
            steps, events = run.select("steps", layer, head), run.select("events", layer, head)
            if len(steps):
                arrays = read_arrays(run, layer, head, predicts_scores(steps))
                table = bound_over_steps(steps, events, arrays, query_heads_a_slot(run))
                parts.append(table.assign(layer=layer, head=head))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*COLUMNS, "layer", "head"])


def typical_perturbation(run: Run) -> float | None:
    """By how much a decision that merged changed the output of its head, relative; the median, None without any."""
    events = run.select("events", columns=["step", "layer", "head", "target", "perturbation"])
    merged = events[(events["target"] >= 0) & events["perturbation"].notna()]
    found = merged.groupby(["step", "layer", "head"])["perturbation"].max()
    return float(found.median()) if len(found) else None


def over_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The median over heads at every step, the share of heads that have a bound, and of those that are above it."""
    names = ["sag", "perturbation", "output_error", "regret", "epsilon", "gamma", "bound"]
    groups = table.groupby("step")
    above = groups["flag"].agg(lambda flags: float((flags != "").mean()))
    bounded = groups["bound"].agg(lambda values: float(values.notna().mean()))
    medians = groups[names].median().join(groups["merged"].sum())
    return medians.assign(bounded=bounded, above=above).reset_index()


def heads_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a layer and head: how often a bound exists, how often it is broken, and median epsilon and gamma."""
    groups = table.groupby(["layer", "head"])
    return pd.DataFrame(
        {
            "bounded": groups["bound"].agg(lambda values: float(values.notna().mean())),
            "above": groups["flag"].agg(lambda flags: float((flags != "").mean())),
            "epsilon": groups["epsilon"].median(),
            "gamma": groups["gamma"].first(),
            "output_error": groups["output_error"].median(),
        }
    ).reset_index()


def _flags(table: pd.DataFrame, bound: np.ndarray, query_heads: int) -> np.ndarray:
    change = table[["perturbation", "output_error"]].max(axis=1).to_numpy(np.float64)
    broken = np.isfinite(bound) & (change > bound)
    dropped = (table["regret"].fillna(0).cummax() > 0).to_numpy()
    kept = "above" if query_heads == 1 else "above, heads share slots"
    return np.where(broken, np.where(dropped, "above, tokens dropped", kept), "")


def query_heads_a_slot(run: Run) -> int:
    """Query heads to a KV head; above 1 no merged slot can be exact for each of them (docs/grouped-queries.md)."""
    return run.record.model.num_attention_heads // run.record.model.num_key_value_heads
