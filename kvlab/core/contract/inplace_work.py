"""Input and output tensors of one in-place decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvlab.core.contract.token_draws import MIX

COLUMNS = ("keys", "values", "position", "score", "votes", "log_mass", "average", "lengths")


@dataclass
class Work:
    """One decision of a table: the newest query updates the scores, and one slot of each head is evicted.

    While the table stays the same, only `mass` and `tokens_seen` change from step to step.

    Columns are (B, H, S) with one layout; absent or constant ones are None. `mass` (B, H, S) is the newest query's
    attention; `tokens_seen` is (B,), all else (B, H).
    """

    kind: int
    keys: Tensor  # (B, H, S, d)
    values: Tensor
    position: Tensor  # negative in invalid slots
    mass: Tensor
    tokens_seen: Tensor
    recent: Tensor  # protected newest tokens
    sinks: Tensor  # protected first tokens
    evicted_votes: Tensor  # votes evicted so far
    score: Tensor | None = None
    votes: Tensor | None = None
    log_mass: Tensor | None = None
    average: Tensor | None = None  # log of the running average used for prediction
    # (B, H, 2): range of queries the scores include (`kvlab.core.contract.slot_columns.ASKED`)
    asked: Tensor | None = None
    residual: Tensor | None = None
    threshold: Tensor | None = None
    covers: Tensor | None = None  # (B, H, S) tokens a pool covers
    generation: Tensor | None = None  # how often it was pooled
    absorb: Callable[[Tensor, Tensor], None] | None = None  # takes the victim's key and value (B, H, 1, d)
    decay: float = 1.0  # of scores
    alpha: float = 0.5  # of averages
    least: float = 0.0  # smallest cosine for a merge, or weight of the newest one in a moving threshold
    mass_of_votes: float = 0.0  # log mass is this times log(votes) if it has no column
    sums: bool = False  # add the scores of merged slots, else keep the larger
    bias: bool = True  # add what the mean key lacks to the log mass
    reach: int = 1  # slots a value is spread over
    drawn: bool = False  # decide whether to spread by a number drawn for the token
    stream: int = 0  # start of head 0's random stream
    mixes: tuple[int, int, int] = MIX
    lengths: Tensor | None = None  # of the keys, if stored
    full: bool = False  # every slot is valid until one of each head is evicted
    # (B, H, S): products of the key of `guess` and all keys, times `scaling`, if attention computed them.
    products: Tensor | None = None
    scaling: float = 1.0
    # Outputs, (B * H,): flat index of the evicted slot, and whether it was merged.
    left: Tensor | None = None
    merged: Tensor | None = None
    looks_ahead: bool = False  # whether `guess` was updated

    @cached_property
    def flat(self) -> dict[str, Tensor]:
        """Columns by name, flattened to (B * H * S[, d]); they must be contiguous."""
        own = {name: getattr(self, name) for name in COLUMNS}
        return {name: column.view(-1, *column.shape[3:]) for name, column in own.items() if column is not None}

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Columns (B * H, S[, d]) and per-head values (B * H,) by name, as arrays of the same memory."""
        heads, long = self.evicted_votes.numel(), (*COLUMNS, "residual", "covers", "generation", "asked")
        parts = {name: getattr(self, name) for name in (*long, "recent", "sinks", "evicted_votes", "threshold")}
        parts |= {"left": self.victims, "merged": self.joined, "guess": self.guess}
        # Placeholder for `products`, with no slots and the memory layout of products.
        parts["beside"] = self.mass.new_zeros(heads, 1, 2, 2)[..., 0]
        there = {name: part for name, part in parts.items() if part is not None}
        return {
            name: part.numpy().reshape(heads, *(part.shape[2:] if name in (*long, "beside") else ()))
            for name, part in there.items()
        }

    @cached_property
    def counted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Positions and votes (B * H, S) as arrays of the same memory; votes None if all slots have one."""
        heads = self.evicted_votes.numel()
        votes = None if self.votes is None else self.votes.numpy().reshape(heads, -1)
        return self.position.numpy().reshape(heads, -1), votes

    @cached_property
    def guess(self) -> Tensor:
        """Flat index of each head's likely next victim (B * H,)."""
        with torch.inference_mode(False):
            return torch.zeros(self.evicted_votes.numel(), dtype=torch.int64)

    def key_of_guess(self) -> Tensor | None:
        """Key (B, H, d) of the likely next victim; None if unknown."""
        if not self.looks_ahead:
            return None
        return self.flat["keys"].index_select(0, self.guess).view(*self.keys.shape[:2], -1)

    @cached_property
    def joined(self) -> Tensor:
        """Output buffer: which heads merged, (B * H,) bool."""
        with torch.inference_mode(False):
            return torch.zeros(self.evicted_votes.numel(), dtype=torch.bool)

    @cached_property
    def victims(self) -> Tensor:
        """Output buffer: flat index of each head's evicted slot, (B * H,)."""
        with torch.inference_mode(False):  # also written at later steps, outside inference mode
            return torch.zeros(self.evicted_votes.numel(), dtype=torch.int64)

    @cached_property
    def no_mass(self) -> Tensor:
        """Placeholder (scalar) for `mass` between steps."""
        return self.mass.new_zeros(())
