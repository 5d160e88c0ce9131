"""One decision of a table as tensors and numbers, as the kernel that takes it whole is given it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from kvlab.methods.settlers.merging.draws import MIX

EVICT, RESIDUAL, NEAREST, SIMILAR, SPREAD = range(5)  # what becomes of the slot that leaves


@dataclass
class Work:
    """One decision of a table: the newest query enters the scores, one slot of each head leaves.

    From one step to the next only `mass` and `tokens_seen` are others, as long as the table is the same.

    Columns are (B, H, S) and have one layout; those that this decision has not, or that all slots share, are None.
    `mass` (B, H, S) is the newest query's attention; `tokens_seen` is (B,), all else (B, H).
    """

    kind: int
    keys: Tensor  # (B, H, S, d)
    values: Tensor
    position: Tensor  # negative where a slot is not valid
    mass: Tensor
    tokens_seen: Tensor
    recent: Tensor  # newest tokens that stay
    sinks: Tensor  # first tokens that stay
    dropped: Tensor  # votes lost so far
    score: Tensor | None = None
    votes: Tensor | None = None
    log_mass: Tensor | None = None
    average: Tensor | None = None  # log of the running average that predicts
    asked: Tensor | None = None  # (B, H, 2): which queries it is made of (`kvlab.methods.columns.ASKED`)
    residual: Tensor | None = None
    threshold: Tensor | None = None
    decay: float = 1.0  # of scores
    alpha: float = 0.5  # of averages
    least: float = 0.0  # cosine below which nothing merges, or weight of the newest in a moving threshold
    mass_of_votes: float = 0.0  # log mass is so many times log(votes) where it has no column
    sums: bool = False  # scores of merged slots are added, else the larger stays
    bias: bool = True  # what a mean key lacks goes into the log mass
    reach: int = 1  # slots a value is spread over
    drawn: bool = False  # it is spread or not, by a number drawn for the token
    stream: int = 0  # where the draws of head 0 begin
    mixes: tuple[int, int, int] = MIX
    lengths: Tensor | None = None  # of the keys, where slots hold them
    merged: Tensor | None = None  # (B * H,) bool: which heads have merged, where plain torch did it
    _by_slot: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def begins(self) -> Tensor:
        """(B * H,): where each head's slots begin among those of all heads."""
        batch, heads, slots = self.position.shape
        return torch.arange(0, batch * heads * slots, slots, device=self.position.device)

    def by_slot(self, name: str) -> Tensor:
        """A column (B * H * S[, d]), the slots of all heads behind one another; it must be contiguous."""
        if name not in self._by_slot:
            column = getattr(self, name)
            self._by_slot[name] = column.view(-1, *column.shape[3:])
        return self._by_slot[name]

    @cached_property
    def last(self) -> Tensor:
        """Infinity, of no dimension: the rating of what stays."""
        return self.mass.new_full((), torch.inf)

    @cached_property
    def never(self) -> Tensor:
        """Minus infinity, of no dimension."""
        return self.mass.new_full((), -torch.inf)
