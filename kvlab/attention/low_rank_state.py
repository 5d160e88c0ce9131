"""Attention over slots and a low-rank state together: the state is one more slot, which follows each query (LESS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.settlers.less import HEAD, NORMALIZER, NUMERATOR, Absorb
from kvlab.stores.quantized_states import States, mixed


@dataclass(frozen=True)
class LowRankState:
    """What the heads of one layer absorbed, and the maps that queries read it with.

    `noted` is the heads' own state as plans leave it, not a copy: what is read here follows every plan.
    """

    absorb: Absorb
    layer: int
    noted: Mapping[str, Tensor]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was absorbed yet, so that slots are all there is."""
        return HEAD not in self.noted

    def column(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """(logits (B, H, G, q), values (B, H, G, q, d)) float32 of the slot that stands for the state.

        logit = log(phi(q) z), value = phi(q) H / phi(q) z; the logit of a head that absorbed nothing is -inf.
        """
        head, normalizer = self.noted[HEAD], self.noted[NORMALIZER]
        features = self.absorb.maps(self.layer, head).of_queries(query.unflatten(1, (head.shape[1], -1)))
        group = features.shape[2:4]
        beside = features.flatten(2, 3)  # a group's queries read the same state: no copy of it for each
        total = (beside @ normalizer[..., None]).unflatten(2, group)
        values = (beside @ self.noted[NUMERATOR]).unflatten(2, group)
        return total[..., 0].log(), values / total.clamp_min(torch.finfo(total.dtype).tiny)

    def share(self, query: Tensor, logits: Tensor, bias: Tensor | None) -> StateShare:
        """How queries (B, Hq, q, d) with these logits (B, H, G, q, S) at the slots divide their attention."""
        own, value = self.column(query)
        both = torch.cat([logits, own[..., None]], -1)
        if bias is None:
            mass = torch.softmax(both, -1)
        else:  # padding may see nothing at all
            both[..., :-1] += bias[:, :, :, None]
            mass = torch.softmax(both, -1).nan_to_num_(nan=0.0)
        return StateShare(mass[..., :-1], mass[..., -1], value)


@dataclass(frozen=True)
class StateShare:
    """Attention of some queries: `slots` (B, H, G, q, S) and `state` (B, H, G, q) sum to 1; the state's `value`."""

    slots: Tensor
    state: Tensor
    value: Tensor  # (B, H, G, q, d)

    def output(self, values: States) -> Tensor:
        """(B, Hq, q, d) float32: what slots with `values` (B, H, S, d) and the state give together."""
        of_slots = mixed(self.slots.flatten(2, 3), values).view_as(self.value)
        return of_slots.addcmul_(self.state[..., None], self.value).flatten(1, 2)


def low_rank_state(pipeline: Pipeline, layer: int, noted: Mapping[str, Tensor]) -> LowRankState | None:
    """The state that a method keeps beside the slots of a layer (among the compressed ones); None for most methods."""
    return LowRankState(pipeline.settle, layer, noted) if isinstance(pipeline.settle, Absorb) else None
