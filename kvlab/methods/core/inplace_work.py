"""One decision of a table as tensors and numbers, as the kernel that takes it whole is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvlab.methods.core.slot_columns import FREE
from kvlab.methods.core.token_draws import MIX

COLUMNS = ("keys", "values", "position", "score", "votes", "log_mass", "average", "lengths")


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
    evicted_votes: Tensor  # votes lost so far
    score: Tensor | None = None
    votes: Tensor | None = None
    log_mass: Tensor | None = None
    average: Tensor | None = None  # log of the running average that predicts
    asked: Tensor | None = None  # (B, H, 2): which queries it is made of (`kvlab.methods.core.slot_columns.ASKED`)
    residual: Tensor | None = None
    threshold: Tensor | None = None
    covers: Tensor | None = None  # (B, H, S) tokens a pool stands for
    generation: Tensor | None = None  # how often it was pooled
    absorb: Callable[[Tensor, Tensor], None] | None = None  # takes key and value (B, H, 1, d) of what leaves
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
    full: bool = False  # every slot is valid until one of each head leaves
    # (B, H, S): products of the key of `guess` and all keys, `scaling` times as large, where attention had them made.
    products: Tensor | None = None
    scaling: float = 1.0
    # Where plain torch did it, (B * H,): which slot of all heads' left, and bool, which heads have merged.
    left: Tensor | None = None
    merged: Tensor | None = None
    looks_ahead: bool = False  # whether it was said as well which slot may leave next

    @cached_property
    def flat(self) -> dict[str, Tensor]:
        """Columns by name, (B * H * S[, d]), the slots of all heads behind one another; they must be contiguous."""
        own = {name: getattr(self, name) for name in COLUMNS}
        return {name: column.view(-1, *column.shape[3:]) for name, column in own.items() if column is not None}

    @cached_property
    def by_head(self) -> Tensor:
        """The keys (B * H, S, d)."""
        return self.keys.view(-1, *self.keys.shape[2:])

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Columns by name (B * H, S[, d]), and what heads have (B * H,), as arrays of the same memory."""
        heads, long = self.evicted_votes.numel(), (*COLUMNS, "residual", "covers", "generation", "asked")
        parts = {name: getattr(self, name) for name in (*long, "recent", "sinks", "evicted_votes", "threshold")}
        parts |= {"left": self.pair[1], "merged": self.joined, "guess": self.guess}
        # Of no slot, and as products lie in memory beside a query's logits.
        parts["beside"] = self.mass.new_zeros(heads, 1, 2, 2)[..., 0]
        there = {name: part for name, part in parts.items() if part is not None}
        return {
            name: part.numpy().reshape(heads, *(part.shape[2:] if name in (*long, "beside") else ()))
            for name, part in there.items()
        }

    @cached_property
    def counted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Positions and votes (B * H, S) as arrays of the same memory; no votes where all slots have one."""
        heads = self.evicted_votes.numel()
        votes = None if self.votes is None else self.votes.numpy().reshape(heads, -1)
        return self.position.numpy().reshape(heads, -1), votes

    @cached_property
    def guess(self) -> Tensor:
        """Which slot among those of all heads may leave next, of each head (B * H,)."""
        with torch.inference_mode(False):
            return torch.zeros(self.evicted_votes.numel(), dtype=torch.int64)

    def key_of_guess(self) -> Tensor | None:
        """(B, H, d): the key of the slot that may leave next; None where nobody has looked."""
        if not self.looks_ahead:
            return None
        return self.flat["keys"].index_select(0, self.guess).view(*self.keys.shape[:2], -1)

    @cached_property
    def joined(self) -> Tensor:
        """Room for which heads merge, (B * H,) bool."""
        with torch.inference_mode(False):
            return torch.zeros(self.evicted_votes.numel(), dtype=torch.bool)

    @cached_property
    def begins(self) -> Tensor:
        """(B * H,): where each head's slots begin among those of all heads."""
        batch, heads, slots = self.position.shape
        return torch.arange(0, batch * heads * slots, slots, device=self.position.device)

    @cached_property
    def pair(self) -> tuple[Tensor, Tensor, Tensor]:
        """Room for the slots that leave and for their nearest ones: side by side (2 * B * H,), and each (B * H,)."""
        with torch.inference_mode(False):  # written at later steps too, which may be no inference
            both = torch.empty(2 * self.evicted_votes.numel(), dtype=torch.int64, device=self.evicted_votes.device)
            source, target = both.chunk(2)
            return both, source, target

    @cached_property
    def first(self) -> Tensor:
        """`sinks` (B, H, 1) in the type of positions: numbers of two types are compared in twice the time."""
        return self.sinks.to(self.position.dtype)

    @cached_property
    def last(self) -> Tensor:
        """Infinity, of no dimension: the rating of what stays."""
        return self.mass.new_full((), torch.inf)

    @cached_property
    def never(self) -> Tensor:
        """Minus infinity, of no dimension."""
        return self.mass.new_full((), -torch.inf)

    @cached_property
    def nobody(self) -> Tensor:
        """(B * H,) of minus infinity."""
        return self.mass.new_full((self.evicted_votes.numel(),), -torch.inf)

    @cached_property
    def nowhere(self) -> Tensor:
        """(B * H,): the position of what has left."""
        return self.position.new_full((self.evicted_votes.numel(),), FREE)

    @cached_property
    def none(self) -> Tensor:
        """No votes, of no dimension."""
        return torch.zeros((), dtype=None if self.votes is None else self.votes.dtype, device=self.position.device)
