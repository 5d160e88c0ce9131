"""How Gaussian a layer's hidden states are, channel by channel: what GVote's samples assume."""

from __future__ import annotations

import torch
from torch import Tensor

SHOWN_CHANNELS = 16
MOST_ROWS = 4096  # of the prompt, evenly spread, for what needs sorting
MOST_POOLED = 1_000_000
EDGES = torch.linspace(-6, 6, 49)  # standard deviations
PROBABILITIES = (torch.arange(33) + 0.5) / 33
TINY = 1e-6


def hidden_statistics(states: Tensor, sinks: int) -> dict[str, Tensor]:
    """Statistics of `states` (T, hidden), the first `sinks` tokens left out, as float32.

    `mean`, `deviation`, `skew`, `kurtosis` (excess), `kurtosis_with_sinks` and `distance` (Kolmogorov-Smirnov, to the
    normal distribution of the same mean and deviation), each (hidden,). `histogram` (1 + 16, 48) densities between
    `EDGES` and `quantiles` (1 + 16, 33) at `PROBABILITIES`, both in standard deviations: all channels together, then
    16 evenly spaced ones.
    """
    whole = states.float()
    inner = whole[sinks:]
    mean, deviation = inner.mean(0), inner.std(0)
    standard = (inner - mean) / deviation.clamp_min(TINY)
    rows = torch.linspace(0, len(standard) - 1, min(MOST_ROWS, len(standard)), device=states.device).round().long()
    ordered = standard[rows].sort(0).values  # (n, hidden)
    channels = shown_channels(states.shape[1]).to(states.device)
    pooled = ordered[:: max(1, ordered.numel() // MOST_POOLED)].flatten().sort().values
    shown = [pooled, *ordered[:, channels].unbind(1)]
    return {
        "mean": mean,
        "deviation": deviation,
        "skew": standard.pow(3).mean(0),
        "kurtosis": standard.pow(4).mean(0) - 3,
        "kurtosis_with_sinks": _kurtosis(whole),
        "distance": _distance(ordered),
        "histogram": torch.stack([_density(values) for values in shown]),
        "quantiles": torch.stack([_quantiles(values) for values in shown]),
    }


def shown_channels(hidden: int) -> Tensor:
    """The channels whose histograms are kept, evenly spaced."""
    return torch.linspace(0, hidden - 1, min(SHOWN_CHANNELS, hidden)).round().long()


def _kurtosis(states: Tensor) -> Tensor:
    standard = (states - states.mean(0)) / states.std(0).clamp_min(TINY)
    return standard.pow(4).mean(0) - 3


def _distance(ordered: Tensor) -> Tensor:
    """Largest gap between the empirical and the normal distribution function, for each column of sorted values."""
    normal = torch.special.ndtr(ordered)
    count = len(ordered)
    above = torch.arange(1, count + 1, device=ordered.device)[:, None] / count
    return torch.maximum((above - normal).abs(), (normal - above + 1 / count).abs()).amax(0)


def _density(ordered: Tensor) -> Tensor:
    counts = torch.histc(ordered, len(EDGES) - 1, float(EDGES[0]), float(EDGES[-1]))
    return counts / len(ordered) / float(EDGES[1] - EDGES[0])


def _quantiles(ordered: Tensor) -> Tensor:
    place = PROBABILITIES.to(ordered.device) * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp_max(len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
