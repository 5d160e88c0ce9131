"""Classify heads by four recorded features and cluster similar ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.similarity import locality
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run

SINKS = 4
NEAR = 32
FEATURES = ("sink", "local", "alike", "regret")
ROUNDS = 50


def fingerprints(run: Run, layers: list[int]) -> pd.DataFrame:
    """One row per layer and KV head: attention shares, key similarity and regret, averaged over steps.

    Columns: layer, head; `sink`, true mass of the first `SINKS` tokens; `local`, of the last `NEAR` tokens read;
    `alike`, mean cosine of keys at most 8 apart; `regret`; `output_error`. Heads without recorded arrays are left out.
    """
    means = run.select("steps", columns=["layer", "head", "regret", "output_error"]).groupby(["layer", "head"]).mean()
    rows = []
    for layer in layers:
        for head in range(run.record.model.num_key_value_heads):
            try:
                true, _ = run.attention(layer, head, thinned=True)
                unit, _ = run.keys(layer, head)
            except UserError:
                continue
            shares = _attention_shares(true, run.record.prompt_tokens, run.attention_every)
            rows.append({"layer": layer, "head": head, **shares, "alike": locality(unit)["near"]})
    if not rows:
        return pd.DataFrame(columns=["layer", "head", *FEATURES, "output_error"])
    return pd.DataFrame(rows).merge(means.reset_index(), on=["layer", "head"])


def _attention_shares(true_mass: np.ndarray, prompt_tokens: int, every: int) -> dict[str, float]:
    sink = true_mass[:, :SINKS].astype(np.float32).sum(1).mean()
    local = [
        row[max(SINKS, prompt_tokens + step - NEAR) : prompt_tokens + step].astype(np.float32).sum()
        for step, row in zip(range(0, len(true_mass) * every, every), true_mass, strict=True)
    ]
    return {"sink": float(sink), "local": float(np.mean(local))}


def standardize(table: pd.DataFrame) -> np.ndarray:
    """(heads, features) with mean 0 and standard deviation 1; constant or unrecorded features are 0."""
    values = table[list(FEATURES)].to_numpy(np.float64)
    centred = values - np.nanmean(values, axis=0) if len(values) else values
    deviation = np.nanstd(values, axis=0) if len(values) else np.ones(len(FEATURES))
    return np.nan_to_num(centred / np.where(deviation > 1e-12, deviation, 1))


def plane(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Principal component analysis: (scores (heads, 2), loadings (features, 2), explained variance shares (2,)).

    The sign of each axis is chosen so that its largest loading is positive.
    """
    values = standardize(table)
    _, lengths, directions = np.linalg.svd(values, full_matrices=False)
    directions = np.vstack([directions, np.zeros((2, len(FEATURES)))])[:2]
    signs = np.sign(directions[np.arange(2), np.abs(directions).argmax(1)])
    directions = directions * np.where(signs == 0, 1, signs)[:, None]
    lengths = np.append(lengths, [0, 0])
    shares = lengths[:2] ** 2 / max(float((lengths**2).sum()), 1e-12)
    return values @ directions.T, directions.T, shares


def cluster(table: pd.DataFrame, count: int) -> np.ndarray:
    """(heads,) group of each head, the largest first, by k-means that starts from the farthest points."""
    values = standardize(table)
    count = min(count, len(np.unique(values, axis=0)))
    if count < 2:
        return np.zeros(len(values), np.int64)
    centres = _far_starts(values, count)
    group = np.zeros(len(values), np.int64)
    for _ in range(ROUNDS):
        now = ((values[:, None] - centres) ** 2).sum(2).argmin(1)
        if (now == group).all() and _:
            break
        group = now
        centres = np.array([values[group == at].mean(0) if (group == at).any() else centres[at] for at in range(count)])
    order = np.argsort(-np.bincount(group, minlength=count), kind="stable")
    return np.argsort(order)[group]


def _far_starts(values: np.ndarray, count: int) -> np.ndarray:
    starts = [values[(values**2).sum(1).argmax()]]
    for _ in range(count - 1):
        nearest = np.min([((values - start) ** 2).sum(1) for start in starts], axis=0)
        starts.append(values[nearest.argmax()])
    return np.array(starts)


def describe(table: pd.DataFrame, group: np.ndarray) -> pd.DataFrame:
    """One row per group: number of heads, mean of each feature, and a short description of what distinguishes it."""
    standard = pd.DataFrame(standardize(table), columns=list(FEATURES)).groupby(group).mean()
    means = table[[*FEATURES, "output_error"]].groupby(group).mean()
    sizes = table.groupby(group).size().rename("heads")
    named = means.assign(heads=sizes, name=[_name(row) for _, row in standard.iterrows()])
    return named.rename_axis("group").reset_index()


DESCRIPTIONS = {
    "sink": ("more on the first tokens", "less on the first tokens"),
    "local": ("more local", "looks further"),
    "alike": ("keys more alike", "keys less alike"),
    "regret": ("more regret", "less regret"),
}


def _name(row: pd.Series) -> str:
    strong = row[row.abs() >= 0.5].abs().sort_values(ascending=False).index[:2]
    return ", ".join(DESCRIPTIONS[feature][0 if row[feature] > 0 else 1] for feature in strong) or "average"
