"""PyramidInfer: thin generated tokens in lots, so that the cache grows slower than the text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import View

PROMPT = "prompt_tokens"  # per-head state: prompt tokens, which later decisions leave unchanged


@dataclass(frozen=True)
class ThinInLots:
    """Evict the prompt to its budget once; keep generated tokens, thinned `lot` at a time.

    When `lot` of them have left the recent region (the last 1 + int(recent * tokens seen)), the k best scored are kept
    for good: k = max(1, int(lot * keep * c_i)) with c_i = (1 - ratio) (cos(pi i / L) + 1) / 2 + ratio in layer i of L.
    The n-th lot is the n-th `lot` generated tokens by position.
    """

    lot: int = 16
    keep: float = 0.9
    ratio: float = 0.1
    recent: float = 0.2
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Generated tokens are kept in addition to the budget until their lot is complete."""
        return Capabilities(thinned=self.thinned, head_bytes=self.head_bytes)

    def settle(self, view: View, select: Selector) -> Plan:
        """Evict the prompt's victims, or those of complete lots."""
        if view.phase == "prefill":
            keep = select.victims(view, view.excess(), view.most_excess).keep(view.slots.valid)
            return Plan(keep, head_state={PROMPT: view.tokens_seen[:, None].expand_as(view.budget).contiguous()})
        prompt = view.head_state.get(PROMPT)
        if prompt is None:  # no decision so far: the tokens of this pass are the generated ones
            prompt = (view.tokens_seen - view.seen.num_new)[:, None].expand_as(view.budget).contiguous()
        region = 1 + (view.tokens_seen.double() * self.recent).long()
        complete = ((view.tokens_seen - region)[:, None] - prompt).clamp_min(0) // self.lot  # (B, H)
        keep = view.slots.valid
        for back in range(view.most_excess // self.lot + 1):
            first = prompt + self.lot * (complete - 1 - back)
            keep = keep & ~self._complete_lots(view, first, complete > back)
        return Plan(keep, head_state={PROMPT: prompt})

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of the prompt length stored per head."""
        return 8

    def thinned(self, before: int, shortest: int, longest: int, layer: int, num_layers: int) -> int:
        """Slots that every head has certainly evicted in lots.

        For texts of `shortest` to `longest` tokens whose prompts had at most `before`.
        """
        complete = max(shortest - 1 - int(longest * self.recent) - before, 0) // self.lot
        return complete * (self.lot - self.kept(layer, num_layers))

    def kept(self, layer: int, num_layers: int) -> int:
        """Kept tokens k per lot."""
        cosine = (1 - self.ratio) * (math.cos(math.pi * layer / num_layers) + 1) / 2 + self.ratio
        return max(1, int(self.lot * self.keep * cosine))

    def _complete_lots(self, view: View, first: Tensor, due: Tensor) -> Tensor:
        """Victims (B, H, S) of the lot that begins at `first` (B, H): all but the best, if `due`."""
        slots = view.slots
        inside = slots.valid & (slots.position >= first[..., None]) & (slots.position < (first + self.lot)[..., None])
        excess = (inside.sum(-1) - self.kept(view.layer_idx, view.num_layers)).clamp_min(0) * due
        order = torch.nan_to_num(slots.score).masked_fill(~inside, torch.inf)
        index = slots.lowest(order, min(self.lot, order.shape[-1]))
        active = torch.arange(index.shape[-1], device=index.device) < excess[..., None]
        return torch.zeros_like(slots.valid).scatter(2, index, active)
