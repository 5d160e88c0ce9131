"""GVote: sampled future queries vote for the slots they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.lookahead.sampled_queries import FutureQueries

BALLOTS = "ballots"
TINY = 1e-30


@dataclass(frozen=True)
class Ballots:
    """Score_j = ballots_j = number of sampled queries with slot j in their top k (GVote, Algorithm 1).

    k is the step budget: the smallest number of slots that hold `p_nuc` of the last query's attention, per query head,
    at least `minimum`, averaged over the last `step_queries` queries and rounded. Unless `count_sinks`, the first
    `sinks` tokens take part neither in the nucleus nor in the top k: one sink can hold 95 % of the mass and would leave
    k = 1. `union`: a sample chooses what any query head of the group chooses; `mean`: attention is averaged over the
    group first, for k and for each sample. The samples' Gaussian always excludes the sinks. For a prompt of at most
    `sinks` + 2 tokens, every sample chooses everything.
    """

    future: FutureQueries = field(default_factory=FutureQueries)
    p_nuc: float = 0.95
    sinks: int = 4
    minimum: int = 1
    count_sinks: bool = False
    step_queries: int = 1
    group: Literal["union", "mean"] = "union"
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=lambda: {BALLOTS: 0.0})

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` and `ballots` (B, H, S) float32 on the first prefill; later tokens have none."""
        if not first:
            return {}
        # heads have equal slots before the first decision
        valid, position = slots.valid[:, 0], slots.position[:, 0].int()
        inner = valid & (position >= self.sinks)  # (B, S)
        tokens = valid.sum(-1)
        eligible = valid if self.count_sinks else inner
        count = self.step_budget(seen, valid, eligible)
        ballots = self._count(seen, self.future.draw(seen, inner, tokens), eligible, count)
        short = (tokens <= self.sinks + 2)[:, None, None]
        ballots = torch.where(short, valid[:, None].float() * self.future.samples, ballots)
        return {"score": ballots, BALLOTS: ballots}

    def step_budget(self, seen: Seen, valid: Tensor, eligible: Tensor) -> Tensor:
        """k (B, H, G) int64 of each query head (G is 1 for `mean`), at most the number of eligible slots (B, S)."""
        mass = self._attention(seen.last_logits(self.step_queries), eligible)  # (B, H, G, r, S)
        sizes = nucleus_size(mass, self.p_nuc).float()
        real = valid[:, None, None, -mass.shape[3] :].float()  # the last slots belong to the last queries
        average = (sizes * real).sum(-1) / real.sum(-1).clamp_min(1)
        return average.round().long().clamp_min(self.minimum).minimum(eligible.sum(-1)[:, None, None])

    def choices(self, seen: Seen, query: Tensor, eligible: Tensor, count: Tensor) -> Iterator[Tensor]:
        """Chosen slots (B, H, S) of each sample in turn, one at a time to limit memory."""
        largest = int(count.max())
        for sample in range(query.shape[2]):
            logits = seen.logits_of(query[:, :, sample : sample + 1])  # (B, H, G, 1, S)
            wish = self._attention(logits, eligible) if self.group == "mean" else logits
            yield choose_highest(_only(wish, eligible, -torch.inf)[:, :, :, 0], count, largest).any(2)

    def _count(self, seen: Seen, query: Tensor, eligible: Tensor, count: Tensor) -> Tensor:
        """Number of votes (B, H, S)."""
        ballots = torch.zeros(*count.shape[:2], eligible.shape[-1], device=query.device)
        for choice in self.choices(seen, query, eligible, count):
            ballots += choice
        return ballots

    def _attention(self, logits: Tensor, eligible: Tensor) -> Tensor:
        """Shares (B, H, G, r, S) of the attention to eligible slots; for `mean` the group's mean, with G 1."""
        if self.group == "union":
            return torch.softmax(_only(logits, eligible, -torch.inf), -1).nan_to_num(0.0)
        mass = _only(torch.softmax(logits, -1).nan_to_num(0.0).mean(2, keepdim=True), eligible, 0.0)
        return mass / mass.sum(-1, keepdim=True).clamp_min(TINY)


def _only(values: Tensor, eligible: Tensor, elsewhere: float) -> Tensor:
    return values.masked_fill(~eligible[:, None, None, None], elsewhere)


def nucleus_size(mass: Tensor, share: float) -> Tensor:
    """Smallest number (...) of entries of `mass` (..., S) that together hold `share`, including the one that crosses
    it.
    """
    largest = mass.sort(-1, descending=True).values
    before = largest.cumsum(-1) - largest
    return ((before < share) & (largest > 0)).sum(-1)


def choose_highest(wish: Tensor, count: Tensor, largest: int) -> Tensor:
    """Mask (..., S) of the `count` (...) highest of `wish` (..., S); `largest`: host-side bound on the counts."""
    index = wish.argsort(dim=-1, descending=True, stable=True)[..., :largest]  # of equal ones the older
    meant = torch.arange(largest, device=wish.device) < count[..., None]
    return torch.zeros_like(wish, dtype=torch.bool).scatter(-1, index, meant)
