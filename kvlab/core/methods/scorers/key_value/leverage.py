"""Leverage of keys and values: how much of a direction a token holds alone (CurDKV, Compactor)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.ties import round_relatively, round_to_step
from kvlab.core.contract.view import Seen, Slots
from kvlab.core.methods.scorers.prompt_scorer import PromptScorer

JITTER = 1e-2  # added to the diagonal before factorizing, as in kvpress
TINY = 1e-6


@dataclass(frozen=True)
class SquaredLengths(PromptScorer):
    """Score = |k|^2 |v|^2, each over its sum in the token's part of `part` tokens of the text (CurDKV).

    Squared lengths stand for leverage scores. `of` chooses keys, values, their product or mean; scores sum to 1 over a
    head. They are rounded to .02 % before, so that repeated tokens have equal ones. Prompt only.
    """

    of: Literal["product", "mean", "key", "value"] = "product"
    part: int = 16

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(key_copies=1.0)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        key, value = (self._shares(slots, states) for states in (slots.keys, slots.values))
        score = {"key": key, "value": value, "mean": (key + value) / 2, "product": key * value}[self.of]
        score = round_relatively(score)
        return {"score": score / score.sum(-1, keepdim=True).clamp_min(TINY)}

    def _shares(self, slots: Slots, states: Tensor) -> Tensor:
        squares = states.float().square().sum(-1) * slots.valid
        which = slots.position.clamp_min(0).long() // self.part
        total = torch.zeros_like(squares).scatter_add(2, which, squares)
        return squares / total.gather(2, which).clamp_min(TINY)


@dataclass(frozen=True)
class ChunkLeverage(PromptScorer):
    """Score = `blend` * z(leverage) + z(attention), without the first `sinks` and last `recent` tokens (Compactor).

    Leverage: diagonal of X (X'X + .01 I)^-1 X', X the centred keys before rotation times a Gaussian sketch of `sketch`
    columns; 0: no sketch. Attention: each query over all keys of its `chunk` tokens, later ones included, summed over
    queries, mean over the group, times |v|, averaged over 3 neighbours. z scales to mean 0 and variance 1 over all
    heads of the layer, and the sum is a multiple of 2^-16. All heads and rows share one sketch. Prompt only, whose
    queries it needs together.
    """

    blend: float = 0.35
    sketch: int = 48
    chunk: int = 256
    sinks: int = 8
    recent: int = 4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=self.prompt_rows, key_copies=3.0)

    def prompt_rows(self, tokens: int) -> int:
        """All."""
        return tokens

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; protected tokens score above all others."""
        if not first:
            return {}
        tokens = slots.valid.sum(-1, keepdim=True)
        inner = slots.valid & (slots.position >= self.sinks) & (slots.position < tokens - self.recent)
        score = self.blend * _standard(round_relatively(self.leverage(slots, seen, inner)), inner)
        score = score + _standard(self.attention(slots, seen, inner), inner)
        highest = score.masked_fill(~inner, -torch.inf).amax(-1, keepdim=True).clamp_min(0.0)
        return {"score": round_to_step(torch.where(inner, score, highest + 1))}

    def leverage(self, slots: Slots, seen: Seen, among: Tensor) -> Tensor:
        """Ridge leverage (B, H, S) of the keys `among` (B, H, S)."""
        keys = slots.keys.float()
        if seen.rotary is not None:
            keys = seen.rotary.turn(keys, -slots.position.clamp_min(0))
        weight = among[..., None].float()
        centred = (keys - (keys * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp_min(1)) * weight
        if self.sketch:
            centred = centred @ self._sketch(keys.shape[-1], seen)
        matrix = centred.mT @ centred + JITTER * torch.eye(centred.shape[-1], device=keys.device)
        factor = torch.linalg.cholesky_ex(matrix).L
        return torch.linalg.solve_triangular(factor, centred.mT, upper=False).square().sum(2)

    def _sketch(self, width: int, seen: Seen) -> Tensor:
        seed = 0 if seen.generator is None else seen.generator.initial_seed()
        drawn = torch.randn(width, self.sketch, generator=torch.Generator().manual_seed(seed % 2**63))
        return (drawn / self.sketch**0.5).to(seen.query.device)

    def attention(self, slots: Slots, seen: Seen, among: Tensor) -> Tensor:
        """Attention (B, H, S) within chunks of the tokens `among`, both ways, times |v|, smoothed."""
        heads = slots.keys.shape[1]
        # all heads have the same slots before the first decision, in the order of the text behind their padding
        order = (~among[:, :1]).to(torch.uint8).argsort(stable=True, dim=-1)  # (B, 1, S)
        real = among[:, :1].gather(2, order)
        blank = -order.shape[-1] % self.chunk
        # benchmarks of the decision alone bring only the prompt's last queries
        query = torch.nn.functional.pad(seen.query, (0, 0, slots.keys.shape[2] - seen.num_new, 0))
        parts = []
        for states, count in ((query, query.shape[1]), (slots.keys, heads)):
            index = order[..., None].expand(-1, count, -1, states.shape[-1])
            ordered = torch.nn.functional.pad(states.gather(2, index).float(), (0, 0, 0, blank))
            parts.append(ordered.unflatten(2, (-1, self.chunk)))
        there = torch.nn.functional.pad(real, (0, blank)).unflatten(2, (-1, self.chunk))  # (B, 1, n, c)
        query, key = parts[0].unflatten(1, (heads, -1)), parts[1][:, :, None]
        total = torch.zeros_like(slots.score)
        for group in query.unbind(2):  # one query head of each group at a time
            logits = seen.scaling * group @ key[:, :, 0].mT  # (B, H, n, c, c)
            share = torch.softmax(logits.masked_fill(~there[..., None, :], -torch.inf), -1).nan_to_num(0.0)
            received = (share * there[..., None]).sum(-2).flatten(2)[..., : order.shape[-1]]
            total += received / query.shape[2]
        total = total * slots.values.float().norm(dim=-1).gather(2, order.expand_as(total)) * real
        smoothed = avg_pool1d(total, 3, 1, 1)
        return torch.zeros_like(smoothed).scatter(2, order.expand_as(smoothed), smoothed)


def _standard(score: Tensor, among: Tensor) -> Tensor:
    """`score` (B, H, S) scaled to mean 0 and variance 1 over all heads' slots `among`, by row."""
    count = among.sum((1, 2), keepdim=True).clamp_min(2)
    mean = (score * among).sum((1, 2), keepdim=True) / count
    variance = ((score - mean).square() * among).sum((1, 2), keepdim=True) / (count - 1)
    return (score - mean) / variance.sqrt().clamp_min(TINY)
