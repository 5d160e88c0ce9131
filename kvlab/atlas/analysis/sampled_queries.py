"""GVote's sampled queries compared with the true ones, from a probed run (GVote, figure 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.hidden_states import probed_layers
from kvlab.trace.reader import Run

SINKS = 4


def by_head(run: Run) -> pd.DataFrame:
    """One row per layer and KV head, averaged over samples.

    Columns overlap, usage (share of the prompt in a sample's nucleus), true_usage, the same without sinks
    (`inner_...`), correlation and inner_correlation (Pearson, mean of the samples against the true row), step_budget,
    kept (share of the prompt), covered (true attention of the next query on kept tokens), later (the same for later
    queries).
    """
    rows = []
    for layer in probed_layers(run, "sampled"):
        arrays = run.probe("sampled", layer)
        for head in range(len(arrays["true"])):
            true, synthetic = arrays["true"][head], arrays["synthetic"][head]
            shares = {
                name: float(np.mean(arrays[name][head]))
                for name in ("overlap", "usage", "true_usage", "inner_overlap", "inner_usage", "inner_true_usage")
            }
            rows.append(
                {
                    "layer": layer, "head": head, **shares,
                    "correlation": pearson(true, synthetic),
                    "inner_correlation": pearson(true[SINKS:], synthetic[SINKS:]),
                    "step_budget": float(arrays["step_budget"][head]),
                    "kept": float(arrays["union"][head, -1]), "covered": float(arrays["covered"][head, -1]),
                    "later": float(arrays["future"][head].mean()),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def growth(run: Run) -> pd.DataFrame:
    """Share kept and covered by number of samples, over all heads: columns samples, and mean, low and high (10 % and
    90 % of heads) of `kept` and `covered`; 0 samples keep only the protected slots."""
    arrays = [run.probe("sampled", layer) for layer in probed_layers(run, "sampled")]
    kept, covered = (np.concatenate([layer[name] for layer in arrays]) for name in ("union", "covered"))
    table = {"samples": np.arange(kept.shape[1])}
    for name, values in (("kept", kept), ("covered", covered)):
        low, high = np.quantile(values, [0.1, 0.9], axis=0)
        table |= {name: values.mean(0), f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(table)


def coverage_ahead(run: Run) -> pd.DataFrame:
    """Attention of each later query on kept tokens, over all heads: columns ahead, covered, low, high."""
    layers = [run.probe("sampled", layer)["future"] for layer in probed_layers(run, "sampled")]
    values = np.concatenate(layers)
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    ahead = np.arange(1, values.shape[1] + 1)
    return pd.DataFrame({"ahead": ahead, "covered": values.mean(0), "low": low, "high": high})


def rows_of_head(run: Run, layer: int, head: int) -> pd.DataFrame:
    """One row per prompt token: columns position, true, synthetic (mean of the samples), ballots."""
    arrays = run.probe("sampled", layer)
    columns = {name: arrays[name][head] for name in ("true", "synthetic", "ballots")}
    return pd.DataFrame({"position": np.arange(len(columns["true"])), **columns})


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; NaN if one side is constant."""
    if len(first) < 3 or first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first.astype(np.float64), second.astype(np.float64))[0, 1])
