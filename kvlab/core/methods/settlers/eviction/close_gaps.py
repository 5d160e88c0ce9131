"""Eviction from a prompt, after which the remaining keys stand next to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector
from kvlab.core.contract.plan import NewKeys, Plan
from kvlab.core.contract.view import View
from kvlab.core.errors import UserError


@dataclass(frozen=True)
class EvictAndCloseGaps:
    """Evict all victims, and turn each remaining key forward by the number of tokens missing between it and the end.

    Rotary attention depends on distances only, so this equals counting positions from 0 inside the cache, as Finch
    does, while new tokens keep their positions in the text. For methods that compress the prompt only: keys are turned
    once, in float32.
    """

    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(key_copies=3.0)

    def settle(self, view: View, select: Selector) -> Plan:
        """Raises UserError for a model without rotary positions."""
        slots, rotary = view.slots, view.seen.rotary
        if rotary is None:
            raise UserError("This model has no rotary positions to count inside the cache: use positions 'original'.")
        keep = select.victims(view, view.excess(), view.most_excess).keep(slots.valid)
        turn = missing(slots.in_text(), slots.position, keep, view.tokens_seen)
        index = torch.arange(slots.position.shape[-1], device=turn.device).expand_as(slots.position)
        turned = rotary.turn(slots.keys, turn).to(slots.keys.dtype)
        return Plan(keep=keep, new_keys=NewKeys(index, torch.where(turn[..., None] == 0, slots.keys, turned)))


def missing(order: Tensor, position: Tensor, keep: Tensor, tokens: Tensor) -> Tensor:
    """Number of tokens (B, H, S) that left between each slot of `keep` and the end of a text of `tokens` (B,).

    `order` (B, H, S) are the slots in order of the text, `position` their places there.
    """
    kept = keep.gather(2, order).long()
    from_here = kept.flip(-1).cumsum(-1).flip(-1)
    behind = torch.zeros_like(from_here).scatter(2, order, from_here)
    return torch.where(keep, tokens[:, None, None] - behind - position, 0).to(torch.int32)
