"""Scores from keys only, without queries or attention (KeyDiff, key norm)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.ties import round_to_step
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer

ONE_LENGTH = 2**-7  # lengths within this share are ties: bfloat16 changes each by up to half of it
STEPS = 1200  # rounding steps per factor of two in length; sqrt(head_dim), the length of normalized keys, is on no edge


@dataclass(frozen=True)
class UnusualKeys(PromptScorer):
    """Score = -cos(k, mean of the head's unit keys): unusual keys are kept (KeyDiff).

    Cosines are multiples of 2^-16: in a text of one token, keys as far from the middle are equally unusual.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The float32 copies of keys during prompt scoring were measured with the allocator."""
        return Capabilities(key_copies=4.2)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, relative to the mean of the current slots."""
        units = normalize(slots.keys.float(), dim=-1) * slots.valid[..., None]
        mean = units.sum(2, keepdim=True) / slots.live()[..., None, None].clamp_min(1)
        return {"score": -round_to_step(cosine_similarity(units, mean, dim=-1))}


@dataclass(frozen=True)
class ShortKeys(PromptScorer):
    """Score = -|k|: short keys are kept (key norm, arXiv 2406.11430). Rotation preserves lengths.

    Rounding must not decide: repeated words have keys of equal length in the first layer, and so have all keys of a
    head whose model normalizes keys without weights. So lengths are rounded to .06 %, differences within a head that
    16-bit numbers may cause are ties, and the newer of equal ones counts as shorter.
    """

    @property
    def capabilities(self) -> Capabilities:
        """16-bit keys are copied to float32 during prompt scoring."""
        return Capabilities(key_copies=1.0)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, comparing lengths of the current slots."""
        length = torch.linalg.vector_norm(slots.keys.float(), dim=-1)
        longest = length.masked_fill(~slots.valid, -torch.inf).amax(-1, keepdim=True)
        shortest = length.masked_fill(~slots.valid, torch.inf).amin(-1, keepdim=True)
        differ = longest - shortest > longest * ONE_LENGTH
        steps = (length.where(differ, longest).log2() * STEPS).round()
        newness = slots.position / (slots.position.amax(-1, keepdim=True) + 1)  # below 1
        return {"score": -((steps - newness) / STEPS).exp2()}
