"""Statistics of hidden states that come in one part."""

from __future__ import annotations

from torch import Tensor

from kvlab.engine.probe import HiddenStatistics


def hidden_statistics(states: Tensor, sinks: int) -> dict[str, Tensor]:
    """`HiddenStatistics.statistics` of `states` (T, hidden), the first `sinks` tokens left out."""
    gathered = HiddenStatistics(len(states), sinks)
    gathered.add(states)
    return gathered.statistics(states.device)
