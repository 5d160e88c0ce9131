"""Scores that look at keys alone: no queries, no attention weights (KeyDiff, key norm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from kvlab.methods.core.contract import Capabilities
from kvlab.methods.core.view import Seen, Slots

ONE_LENGTH = 2**-7  # lengths within this share of each other are equal: bfloat16 moves each by up to half of it
STEPS = 1200  # to which a factor of two in length is rounded; sqrt(head_dim), as normed keys have it, is on no edge


@dataclass(frozen=True)
class UnusualKeys:
    """Score = -cos(k, mean of the head's unit keys): keys that point elsewhere than most stay (KeyDiff)."""

    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Copies of the keys in float32 while a prompt is scored were counted with the allocator."""
        return Capabilities(key_copies=4.2)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, against the mean of the slots held now."""
        units = normalize(slots.keys.float(), dim=-1) * slots.valid[..., None]
        mean = units.sum(2, keepdim=True) / slots.live()[..., None, None].clamp_min(1)
        return {"score": -cosine_similarity(units, mean, dim=-1)}


@dataclass(frozen=True)
class ShortKeys:
    """Score = -|k|: short keys stay (key norm, arXiv 2406.11430). A rotation leaves lengths as they are.

    Rounding must not choose: a word that comes again has keys of one length in the first layer, and in a head whose
    model norms its keys without a weight all have. So lengths are rounded to .06 %, those of a head that differ by no
    more than numbers of 16 bits may are equal, and of equal ones the newer counts as the shorter.
    """

    every_step: bool = False
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Narrower keys are copied to float32 while a prompt is scored."""
        return Capabilities(key_copies=1.0)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32; the lengths compared are those of the slots held now."""
        length = torch.linalg.vector_norm(slots.keys, dim=-1, dtype=torch.float32)
        longest = length.masked_fill(~slots.valid, -torch.inf).amax(-1, keepdim=True)
        shortest = length.masked_fill(~slots.valid, torch.inf).amin(-1, keepdim=True)
        differ = longest - shortest > longest * ONE_LENGTH
        steps = (length.where(differ, longest).log2() * STEPS).round()
        newness = slots.position / (slots.position.amax(-1, keepdim=True) + 1)  # below 1
        return {"score": -((steps - newness) / STEPS).exp2()}
