"""Normality of a probed prompt's hidden states, by channel (GVote, figure 2)."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pandas as pd

from kvlab.trace.reader import Run

MOST_SKEW, MOST_KURTOSIS = 0.5, 1.0
EDGE = 6.0  # range of the histograms in standard deviations
ALL = "all channels"


def probed_layers(run: Run, name: str) -> list[int]:
    """The layers with `hidden` or `sampled` arrays."""
    files = (run.path / "arrays").glob(f"{name}-layer-*.safetensors")
    return sorted(int(path.stem.rpartition("-")[2]) for path in files)


def channels(run: Run) -> pd.DataFrame:
    """One row per layer and channel: skew, kurtosis (excess), kurtosis_with_sinks, distance (Kolmogorov-Smirnov),
    close.

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
    hidden, rows = len(arrays["mean"]), arrays[name]
    chosen = np.linspace(0, hidden - 1, len(rows) - 1).round().astype(int)
    labels = [ALL, *(f"channel {index}" for index in chosen)]
    parts = [pd.DataFrame({"channel": label, **shared, column: row}) for label, row in zip(labels, rows, strict=True)]
    return pd.concat(parts, ignore_index=True)
