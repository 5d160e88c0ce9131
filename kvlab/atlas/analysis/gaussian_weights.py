"""Weights of a KVMerger run compared with the Gaussian kernel at the keys' distances."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run

MEMBERS = ["layer", "head", "target", "source", "distance", "sigma", "kernel", "weight", "relative_weight", "others"]


def merged_pairs(run: Run, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """One row per token merged in the prefill: columns `MEMBERS`.

    `distance` from its key to the pivot's (as cached), `sigma` of its set by the run's rule, `kernel` exp(-distance^2 /
    (2 sigma^2)), `weight` its key's share of the new key, `relative_weight` that share over the pivot's own (predicted
    by the kernel), `others` the tokens of the set besides the pivot.
    """
    parts = [_of_head(run, layer, head) for layer, head in heads]
    found = [part for part in parts if len(part)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=MEMBERS)


def kernel(distance: np.ndarray, sigma: float | np.ndarray) -> np.ndarray:
    """The Gaussian kernel (KVMerger, equation 7)."""
    return np.exp(-np.square(distance) / (2 * np.square(sigma)))


def _of_head(run: Run, layer: int, head: int) -> pd.DataFrame:
    events = run.select("events", layer, head, ["step", "kind", "source", "target", "key_weight"])
    table = events[(events["step"] == 0) & (events["kind"] == "merge")]
    if table.empty:
        return pd.DataFrame(columns=MEMBERS)
    unit, norm = run.keys(layer, head)
    keys = unit.astype(np.float32) * norm.astype(np.float32)[:, None]
    source, target = table["source"].to_numpy(), table["target"].to_numpy()
    table = table.assign(layer=layer, head=head, distance=np.linalg.norm(keys[source] - keys[target], axis=1))
    sets = table.groupby("target")
    others, own = sets["source"].transform("size"), 1 - sets["key_weight"].transform("sum")
    sigma = _sigma(table, others, run.record.hyper_parameters.get("sigma_mode", "mean_l2"))
    return table.assign(
        sigma=sigma,
        kernel=kernel(table["distance"].to_numpy(), sigma.to_numpy()),
        weight=table["key_weight"],
        relative_weight=table["key_weight"] / own,
        others=others,
    )[MEMBERS]


def _sigma(table: pd.DataFrame, others: pd.Series, rule: object) -> pd.Series:
    """Each set's sigma, as in `kvlab.methods.settlers.merging.gaussian_sets`."""
    if rule in ("mean", "mean_l2"):
        mean = table.groupby("target")["distance"].transform("sum") / others
        return mean / math.sqrt(2) if rule == "mean_l2" else mean
    if rule == "paper":
        squares = table.assign(square=table["distance"] ** 2).groupby("target")["square"].transform("sum")
        return squares / (others + 1) / math.sqrt(2)
    return pd.Series(float(str(rule)), index=table.index)
