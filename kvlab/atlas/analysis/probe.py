"""A probed prompt (GVote, figures 2 and 3): normality of its hidden states, and sampled against true queries."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run

MOST_SKEW = 0.5
MOST_KURTOSIS = 1.0
EDGE = 6.0  # range of the histograms in standard deviations
ALL = "all channels"


def probed_layers(run: Run, name: str) -> list[int]:
    """The layers with `hidden` or `sampled` arrays."""
    files = (run.path / "arrays").glob(f"{name}-layer-*.safetensors")
    return sorted(int(path.stem.rpartition("-")[2]) for path in files)


def channels(run: Run) -> pd.DataFrame:
    """One row per layer and channel: skew, kurtosis (excess), kurtosis_with_sinks, distance (Kolmogorov-Smirnov).

    `close`: absolute skew below 0.5 and absolute excess kurtosis below 1. Constant channels are left out.
    """
    parts = []
    for layer in probed_layers(run, "hidden"):
        arrays = run.probe("hidden", layer)
        names = ("skew", "kurtosis", "kurtosis_with_sinks", "distance")
        table = pd.DataFrame({name: arrays[name] for name in names})
        table.insert(0, "layer", layer)
        table.insert(1, "channel", np.arange(len(table)))
        parts.append(table)
    frame = pd.concat(parts).dropna(subset=["skew", "kurtosis"]).reset_index(drop=True)
    return frame.assign(close=(frame["skew"].abs() < MOST_SKEW) & (frame["kurtosis"].abs() < MOST_KURTOSIS))


def densities(run: Run, layer: int) -> pd.DataFrame:
    """Histograms in standard deviations: columns channel (`ALL`, then the shown ones), deviation, density, normal."""
    arrays = run.probe("hidden", layer)
    edges = np.linspace(-EDGE, EDGE, arrays["histogram"].shape[1] + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    normal = np.exp(-(centres**2) / 2) / np.sqrt(2 * np.pi)
    return _shown(arrays, "histogram", {"deviation": centres, "normal": normal}, "density")


def quantiles(run: Run, layer: int) -> pd.DataFrame:
    """Quantile pairs in standard deviations: columns channel, normal, quantile."""
    arrays = run.probe("hidden", layer)
    count = arrays["quantiles"].shape[1]
    normal = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
    return _shown(arrays, "quantiles", {"normal": np.array(normal)}, "quantile")


def _shown(arrays: dict[str, np.ndarray], name: str, shared: dict[str, np.ndarray], column: str) -> pd.DataFrame:
    hidden = len(arrays["mean"])
    rows = arrays[name]
    chosen = np.linspace(0, hidden - 1, len(rows) - 1).round().astype(int)
    labels = [ALL, *(f"channel {index}" for index in chosen)]
    parts = [pd.DataFrame({"channel": label, **shared, column: row}) for label, row in zip(labels, rows, strict=True)]
    return pd.concat(parts, ignore_index=True)


SINKS = 4


def by_head(run: Run) -> pd.DataFrame:
    """One row per layer and KV head, averaged over samples.

    Columns overlap, usage (share of the prompt in a sample's nucleus), true_usage, the same without sinks
    (`inner_...`), correlation and inner_correlation (Pearson, mean of the samples against the true row), step_budget,
    kept (share of the prompt), covered (the next query's true attention on kept tokens), later (of later queries).
    """
    rows = []
    for layer in probed_layers(run, "sampled"):
        arrays = run.probe("sampled", layer)
        for head in range(len(arrays["true"])):
            true = arrays["true"][head]
            synthetic = arrays["synthetic"][head]
            shares = {
                name: float(np.mean(arrays[name][head]))
                for name in ("overlap", "usage", "true_usage", "inner_overlap", "inner_usage", "inner_true_usage")
            }
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    **shares,
                    "correlation": pearson(true, synthetic),
                    "inner_correlation": pearson(true[SINKS:], synthetic[SINKS:]),
                    "step_budget": float(arrays["step_budget"][head]),
                    "kept": float(arrays["union"][head, -1]),
                    "covered": float(arrays["covered"][head, -1]),
                    "later": float(arrays["future"][head].mean()),
                }
            )
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
