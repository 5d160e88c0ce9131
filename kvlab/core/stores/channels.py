"""ThinK (arXiv 2407.21018): some channels of a head's keys are dropped, and read as zero.

Those that matter least to the attention of the prompt's last queries go: channel c of keys K and queries Q scores
|Q[:, c] K[:, c]^T| = |Q[:, c]| |K[:, c]|, the Frobenius norm of its part of the logits (equation 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.stores.code import Coded, Decoding, Learning, half


@dataclass(frozen=True)
class KeptChannels(Learning):
    """The other channels in 16 bits each, and their numbers in 16 bits per head."""

    pruned: int  # percent of the channels
    channels: Tensor | None = field(default=None, compare=False, repr=False)  # (B, H, k) int16; None: the first
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """The channels with the largest sums of squares of keys times those of queries; keys alone if None."""
        score = states.float().square().masked_fill(~valid[..., None], 0.0).sum(2)
        score = score if query_squares is None else score * query_squares.float()
        best = score.topk(self._kept(states.shape[-1])).indices.sort(-1).values
        return {"channels": best.to(torch.int16)}

    def head_bytes(self, width: int) -> int:
        return self._kept(width) * torch.int16.itemsize + width * torch.float16.itemsize

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """The kept channels (B, H, S, k)."""
        own = self._own(states.shape[-1], states)
        return {"codes": half(states.float().masked_fill(~valid[..., None], 0.0).gather(-1, own))}

    def decode(self, coded: Coded, width: int) -> Tensor:
        codes = coded["codes"].float()
        return codes.new_zeros(*codes.shape[:3], width).scatter(-1, self._own(width, codes), codes)

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d), which loses its other channels."""
        return query.gather(-1, self._own(query.shape[-1], query)) @ coded["codes"].float().mT

    def _kept(self, width: int) -> int:
        return width - int(width * self.pruned / 100)

    def _own(self, width: int, states: Tensor) -> Tensor:
        """The channels of each of the slots or queries `states` (B, H, S, ...): (B, H, S, k)."""
        first = torch.arange(self._kept(width), device=states.device).expand(*states.shape[:2], -1)
        own = first if self.channels is None else self.channels.long()
        return own[:, :, None].expand(-1, -1, states.shape[2], -1)


@dataclass(frozen=True)
class SixteenBits(Decoding):
    """Float16, larger numbers clamped."""

    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Two bytes per number."""
        return {"codes": half(states.float().masked_fill(~valid[..., None], 0.0))}

    def decode(self, coded: Coded, width: int) -> Tensor:
        return coded["codes"].float()
