"""How Gaussian a layer's hidden states are per channel, as GVote's samples assume."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SHOWN_CHANNELS = 16
MOST_ROWS = 4096  # of the prompt, evenly spaced, for statistics that need sorting
MOST_POOLED = 1_000_000
EDGES = torch.linspace(-6, 6, 49)  # standard deviations
PROBABILITIES = (torch.arange(33) + 0.5) / 33
CONSTANT = 1e-6  # variation below this share of the mean is rounding


class Moments:
    """Mean and central moments per channel, accumulated over parts (Pébay 2008, equations 2.1 and 3.1)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.second = self.third = self.fourth = torch.zeros(())  # sums of powers about the mean

    def add(self, rows: Tensor) -> None:
        """Add `rows` (n, hidden); the sums are float64 on the host."""
        if not len(rows):
            return
        rows, n, m = rows.float(), self.count, len(rows)
        part_mean = rows.mean(0)
        centred = rows - part_mean
        s2, s3, s4 = (centred.pow(power).sum(0).cpu().double() for power in (2, 3, 4))
        mean = part_mean.cpu().double()
        d = mean - self.mean
        all_ = n + m
        fourth = d**4 * (n * m * (n * n - n * m + m * m) / all_**3)
        fourth = fourth + 6 * d**2 * (n * n * s2 + m * m * self.second) / (all_ * all_)
        self.fourth = self.fourth + s4 + fourth + 4 * d * (n * s3 - m * self.third) / all_
        third = d**3 * (n * m * (n - m) / all_**2) + 3 * d * (n * s2 - m * self.second) / all_
        self.third = self.third + s3 + third
        self.second = self.second + s2 + d**2 * (n * m / all_)
        self.mean = self.mean + d * (m / all_)
        self.count = all_

    @property
    def constant(self) -> Tensor:
        """(hidden,) bool: channels that do not vary."""
        return self.deviation <= CONSTANT * self.mean.abs()

    @property
    def deviation(self) -> Tensor:
        """(hidden,) standard deviation, n - 1; zeros for a single row."""
        return (self.second / max(self.count - 1, 1)).sqrt()

    def standardised(self, power: int) -> Tensor:
        """(hidden,) standardised third or fourth moment; NaN where a channel does not vary."""
        sums = self.third if power == 3 else self.fourth
        return (sums / self.count / self.deviation.pow(power)).masked_fill(self.constant, torch.nan)


class HiddenStatistics:
    """Statistics of a prompt's hidden states, accumulated over parts; the first `sinks` of `tokens` are left out.

    Between parts it holds eight numbers per channel and `MOST_ROWS` rows, on the host.
    """

    def __init__(self, tokens: int, sinks: int) -> None:
        self.sinks = sinks
        self.seen = 0
        self.whole, self.inner = Moments(), Moments()
        inner = max(tokens - sinks, 0)
        self.rows = sinks + torch.linspace(0, inner - 1, min(MOST_ROWS, inner)).round().long()  # kept for sorting
        self.kept: list[Tensor] = []

    def add(self, states: Tensor) -> None:
        """Add the next tokens' `states` (n, hidden)."""
        inner = states[max(self.sinks - self.seen, 0) :]
        self.whole.add(states)
        self.inner.add(inner)
        rows = self.rows[(self.rows >= self.seen) & (self.rows < self.seen + len(states))] - self.seen
        self.kept.append(states[rows.to(states.device)].cpu())
        self.seen += len(states)

    def statistics(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Float32 statistics on `device`, where the rows are sorted. Call once: the rows are released.

        `mean`, `deviation`, `skew`, `kurtosis` (excess), `kurtosis_with_sinks` and `distance` (Kolmogorov-Smirnov, to
        the normal distribution of the same mean and deviation), each (hidden,). `histogram` (1 + 16, 48) densities
        between `EDGES` and `quantiles` (1 + 16, 33) at `PROBABILITIES`, both in standard deviations: all channels
        together, then 16 evenly spaced ones.
        """
        inner = self.inner
        of_channels = {
            "mean": inner.mean,
            "deviation": inner.deviation,
            "skew": inner.standardised(3),
            "kurtosis": inner.standardised(4) - 3,
            "kurtosis_with_sinks": self.whole.standardised(4) - 3,
        }
        found = {name: values.float().to(device) for name, values in of_channels.items()}
        rows = torch.cat(self.kept).to(device).float()  # a copy, modified in place
        self.kept.clear()
        constant = inner.constant.to(device)
        scale = found["deviation"].masked_fill(constant, torch.inf)  # makes a constant channel zero
        ordered = _sorted(rows.sub_(found["mean"]).div_(scale))  # (n, hidden)
        del rows
        hidden = ordered.shape[1]
        channels = torch.linspace(0, hidden - 1, min(SHOWN_CHANNELS, hidden)).round().long().to(device)
        pooled = _sorted(ordered[:: max(1, ordered.numel() // MOST_POOLED)].flatten())
        shown = [pooled, *ordered[:, channels].unbind(1)]
        # Kolmogorov-Smirnov distance to the normal distribution, per column of sorted values.
        normal = torch.special.ndtr(ordered)
        count = len(ordered)
        above = torch.arange(1, count + 1, device=ordered.device)[:, None] / count
        return found | {
            "distance": torch.maximum((above - normal).abs(), (normal - above + 1 / count).abs())
            .amax(0)
            .masked_fill(constant, torch.nan),
            "histogram": torch.stack([_density(values) for values in shown]),
            "quantiles": torch.stack([_quantiles(values) for values in shown]),
        }


def _sorted(numbers: Tensor) -> Tensor:
    """Sort along the first dimension; on a CPU with numpy, which is ten times faster than torch."""
    if numbers.device.type == "cpu":
        return torch.from_numpy(np.sort(numbers.numpy(), axis=0))
    return numbers.sort(0).values


def _density(ordered: Tensor) -> Tensor:
    counts = torch.histc(ordered, len(EDGES) - 1, float(EDGES[0]), float(EDGES[-1]))
    return counts / len(ordered) / float(EDGES[1] - EDGES[0])


def _quantiles(ordered: Tensor) -> Tensor:
    place = PROBABILITIES.to(ordered.device) * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp_max(len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
