"""Low rank: a vector is held by its coordinates in a basis of the head, learned from the slots that are packed first.

The basis are the right singular vectors of these slots with the largest singular values, so the squared error over them
is the least that this rank allows (Eckart and Young). Keys are turned back to position 0 before: rotation by position
spreads them over more directions (ShadowKV, arXiv 2410.21465, section 3.1, which does this for keys; values too here).
Errors of another code can be held so too (GEAR).
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvlab.core.stores.code import Code, Coded, Learning, half


@dataclass(frozen=True)
class LowRank(Learning):
    """`rank` coordinates in 16 bits per slot, and a basis of `rank` vectors in 16 bits per head."""

    rank: int
    basis: Tensor | None = field(default=None, compare=False, repr=False)  # (B, H, r, d) float16; None: channels
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """The basis."""
        return {"basis": coordinates_basis(states.float().masked_fill(~valid[..., None], 0.0), self.rank)}

    def head_bytes(self, width: int) -> int:
        return min(self.rank, width) * width * torch.float16.itemsize

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Coordinates (B, H, S, r)."""
        states = states.float().masked_fill(~valid[..., None], 0.0)
        return {"codes": half(states @ basis_of(self.basis, self.rank, states.shape[-1], states.device).mT)}

    def decode(self, coded: Coded, width: int) -> Tensor:
        return coded["codes"].float() @ basis_of(self.basis, self.rank, width, coded["codes"].device)

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d), which is projected instead of all slots."""
        return query @ basis_of(self.basis, self.rank, query.shape[-1], query.device).mT @ coded["codes"].float().mT

    def weighted_sum(self, coded: Coded, mass: Tensor, width: int) -> Tensor:
        """`mass` (B, H, r, S) float32 times the decoded states; only the sum of coordinates is decoded."""
        return mass @ coded["codes"].float() @ basis_of(self.basis, self.rank, width, mass.device)


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

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """Right singular vectors of the errors."""
        return {"basis": coordinates_basis(self._error(states, valid, self.code.encode(states, valid)), self.rank)}

    def head_bytes(self, width: int) -> int:
        return min(self.rank, width) * width * torch.float16.itemsize

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """What `code` makes, and `coordinates` (B, H, S, r)."""
        coded = self.code.encode(states, valid)
        error = self._error(states, valid, coded)
        return coded | {COORDINATES: half(error @ basis_of(self.basis, self.rank, states.shape[-1], states.device).mT)}

    def decode(self, coded: Coded, width: int) -> Tensor:
        coordinates = coded[COORDINATES].float()
        code = replace(self.code, group=self.group) if self.group != self.code.group else self.code  # type: ignore[type-var]  # every code is a dataclass
        return code.decode(coded, width) + coordinates @ basis_of(self.basis, self.rank, width, coordinates.device)

    def _error(self, states: Tensor, valid: Tensor, coded: Coded) -> Tensor:
        """(B, H, S, d) float32, 0 where not `valid`."""
        error = states.float() - self.code.decode(coded, states.shape[-1])
        return error.masked_fill(~valid[..., None], 0.0)


def basis_of(learned: Tensor | None, rank: int, width: int, device: torch.device) -> Tensor:
    """The `learned` basis (B, H, r, d) in float32; without one the first `rank` channels (r, d)."""
    return torch.eye(width, device=device)[: min(rank, width)] if learned is None else learned.float()


def coordinates_basis(states: Tensor, rank: int) -> Tensor:
    """Right singular vectors (B, H, min(rank, d), d) float16 of `states` (B, H, S, d) float32, largest first."""
    gram = states.mT @ states
    vectors = torch.linalg.eigh(gram if gram.device.type == "mps" else gram.double())[1]
    return half(vectors.flip(-1)[..., :rank].mT.float()).contiguous()
