"""GEAR (arXiv 2403.05527): what a code loses is held once more, in low rank.

Only the low-rank part of the paper: its variant GEAR-L, without the sparse outliers. The basis is learned from the
errors of the slots that are packed first; the error of any later slot is projected onto it, which makes it no larger.
The paper decomposes generated tokens by themselves, 20 at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.core.stores.code import Code, Coded, Learning, half
from kvlab.core.stores.low_rank import coordinates_basis

COORDINATES = "coordinates"


@dataclass(frozen=True)
class Residual(Learning):
    """`code`, and `rank` coordinates of its error in 16 bits per slot, in a basis of the head."""

    code: Code
    rank: int = 4
    basis: Tensor | None = field(default=None, compare=False, repr=False)  # (B, H, r, d) float16; None: channels
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    @classmethod
    def of(cls, code: Code, rank: int = 4) -> Residual:
        """With the groups of `code`."""
        return cls(code, rank, None, code.group, code.shared, code.scales)

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """Right singular vectors of the errors."""
        return {"basis": coordinates_basis(self._error(states, valid, self.code.encode(states, valid)), self.rank)}

    def head_bytes(self, width: int) -> int:
        return min(self.rank, width) * width * torch.float16.itemsize

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """What `code` makes, and `coordinates` (B, H, S, r)."""
        coded = self.code.encode(states, valid)
        error = self._error(states, valid, coded)
        return coded | {COORDINATES: half(error @ self._vectors(states.shape[-1], states.device).mT)}

    def decode(self, coded: Coded, width: int) -> Tensor:
        coordinates = coded[COORDINATES].float()
        code = replace(self.code, group=self.group) if self.group != self.code.group else self.code  # type: ignore[type-var]  # every code is a dataclass
        return code.decode(coded, width) + coordinates @ self._vectors(width, coordinates.device)

    def _error(self, states: Tensor, valid: Tensor, coded: Coded) -> Tensor:
        """(B, H, S, d) float32, 0 where not `valid`."""
        error = states.float() - self.code.decode(coded, states.shape[-1])
        return error.masked_fill(~valid[..., None], 0.0)

    def _vectors(self, width: int, device: torch.device) -> Tensor:
        if self.basis is None:
            return torch.eye(width, device=device)[: min(self.rank, width)]
        return self.basis.float()
