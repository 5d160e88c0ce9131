"""Evict the oldest slots, except sinks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Victims
from kvlab.core.contract.view import View
from kvlab.core.methods.selectors.top_k import LowestScore, fit


@dataclass(frozen=True)
class Oldest:
    """Keep the first `sinks` tokens and a sliding window, whatever their scores (StreamingLLM, CaM).

    A fraction of sinks is a share of the head's budget, rounded up.
    """

    sinks: float | int = 4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protected=self.protected)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The `excess` (B, H) oldest unprotected slots."""
        slots = view.slots
        latest = torch.iinfo(slots.position.dtype).max
        order = fit(view, slots.position, self.protected(view), barred, latest)
        return Victims.lowest(view, order, excess, most, latest)

    def window(self, view: View) -> int:
        """Number of slots that every head keeps after its sinks, at least."""
        sinks = self.sinks if isinstance(self.sinks, int) else math.ceil(view.largest_budget * self.sinks)
        return view.smallest_budget - sinks

    def protected(self, view: View) -> Tensor:
        """Protected slots (B, H, S): sinks, and the newest token."""
        return LowestScore(sinks=self.sinks).protected(view)
