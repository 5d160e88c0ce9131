"""Compactor: keep keys of high leverage, and those that their surroundings attend to."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import avg_pool1d

from kvlab.core.contract import AttentionPass, Capabilities, LowestScore, Pipeline, Preset, Slots
from kvlab.core.contract.method import Method, Recent, Sinks, register
from kvlab.core.contract.numerics import round_relatively, round_to_step
from kvlab.core.methods.scorers.wrapper import PromptScorer

JITTER = 1e-2  # added to the diagonal before factorizing, as in kvpress
TINY = 1e-6


@dataclass(frozen=True)
class ChunkLeverage(PromptScorer):
    """Score = `blend` * z(leverage) + z(attention), without the first `sinks` and last `recent` tokens (Compactor).

    Leverage: diagonal of X (X'X + .01 I)^-1 X', X the centred keys before rotation times a Gaussian sketch of `sketch`
    columns; 0: no sketch. Attention: each query over all keys of its `chunk` tokens, later ones included, summed over
    queries, mean over the group, times |v|, averaged over 3 neighbours. z scales to mean 0 and variance 1 over all
    heads of the layer, and the sum is a multiple of 2^-16. All heads and rows share one sketch. Prompt only, whose
    queries it needs together.
    """

    costs_no_step: ClassVar[bool] = True

    blend: float = 0.35
    sketch: int = 48
    chunk: int = 256
    sinks: int = 8
    recent: int = 4

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=lambda tokens: tokens)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; protected tokens score above all others."""
        if not first:
            return {}
        tokens = slots.valid.sum(-1, keepdim=True)
        inner = slots.valid & (slots.position >= self.sinks) & (slots.position < tokens - self.recent)
        score = self.blend * _standard(round_relatively(self.leverage(slots, layer_pass, inner)), inner)
        score = score + _standard(self.attention(slots, layer_pass, inner), inner)
        highest = score.masked_fill(~inner, -torch.inf).amax(-1, keepdim=True).clamp_min(0.0)
        return {"score": round_to_step(torch.where(inner, score, highest + 1))}

    def leverage(self, slots: Slots, layer_pass: AttentionPass, among: Tensor) -> Tensor:
        """Ridge leverage (B, H, S) of the keys `among` (B, H, S)."""
        keys = slots.keys.float()
        if layer_pass.rotary is not None:
            keys = layer_pass.rotary.turn(keys, -slots.position.clamp_min(0))
        weight = among[..., None].float()
        centred = (keys - (keys * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp_min(1)) * weight
        if self.sketch:
            # one Gaussian sketch for all heads and rows, drawn on the CPU so that devices agree
            seed = 0 if layer_pass.generator is None else layer_pass.generator.initial_seed()
            source = torch.Generator().manual_seed(seed % 2**63)
            drawn = torch.randn(keys.shape[-1], self.sketch, generator=source)
            centred = centred @ (drawn / self.sketch**0.5).to(layer_pass.query.device)
        matrix = centred.mT @ centred + JITTER * torch.eye(centred.shape[-1], device=keys.device)
        factor = torch.linalg.cholesky_ex(matrix).L
        leverage = torch.linalg.solve_triangular(factor, centred.mT, upper=False).square().sum(2)
        return round_to_step(leverage, 2.0**-20)  # 0 where all tokens are one, whose centred keys are rounding

    def attention(self, slots: Slots, layer_pass: AttentionPass, among: Tensor) -> Tensor:
        """Attention (B, H, S) within chunks of the tokens `among`, both ways, times |v|, smoothed."""
        heads = slots.keys.shape[1]
        # all heads have the same slots before the first decision, in the order of the text behind their padding
        order = (~among[:, :1]).to(torch.uint8).argsort(stable=True, dim=-1)  # (B, 1, S)
        real = among[:, :1].gather(2, order)
        blank = -order.shape[-1] % self.chunk
        # benchmarks of the decision alone bring only the prompt's last queries
        query = torch.nn.functional.pad(layer_pass.query, (0, 0, slots.keys.shape[2] - layer_pass.num_new, 0))
        parts = []
        for states, count in ((query, query.shape[1]), (slots.keys, heads)):
            index = order[..., None].expand(-1, count, -1, states.shape[-1])
            ordered = torch.nn.functional.pad(states.gather(2, index).float(), (0, 0, 0, blank))
            parts.append(ordered.unflatten(2, (-1, self.chunk)))
        there = torch.nn.functional.pad(real, (0, blank)).unflatten(2, (-1, self.chunk))  # (B, 1, n, c)
        query = parts[0].unflatten(1, (heads, -1))
        key = parts[1][:, :, None]
        total = torch.zeros_like(slots.score)
        for group in query.unbind(2):  # one query head of each group at a time
            logits = layer_pass.scaling * group @ key[:, :, 0].mT  # (B, H, n, c, c)
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


@register
class Compactor(Method):
    """Keeps tokens by the leverage of their keys before rotation, plus attention within chunks that looks both ways.

    Independent of the question. Follows kvpress (compactor_press.py, leverage_press.py, non_causal_attention_press.py),
    whose logits are not divided by sqrt(d) and whose blend is the share evicted; here they are, and it is a number.
    Scores are scaled over a row's layer, there over the batch. Acts once, after the prompt.
    """

    name = "compactor"
    family = "eviction"
    title = "Compactor"

    blend: float = Field(0.35, ge=0, description="weight of leverage beside attention")
    sketch: int = Field(48, ge=0, le=4096, description="columns of the random sketch of keys; 0: exact leverage")
    chunk: int = Field(256, ge=2, description="tokens that attend to each other")
    sinks: Sinks = 8
    recent: Recent = 4

    paper = "https://arxiv.org/abs/2507.08143"
    presets = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "blend": (0.35, "kvpress, compactor_press.py, score: blending if there is no ratio"),
                "sketch": (48, "kvpress, leverage_press.py, sketch_dimension"),
                "chunk": (256, "kvpress, non_causal_attention_press.py, chunk_size"),
                "sinks": (8, "kvpress, compactor_press.py, sink_size_start"),
                "recent": (4, "kvpress, compactor_press.py, sink_size_end"),
            },
            beyond="kvpress blends by the share of tokens evicted, with .35 where it is unknown.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = ChunkLeverage(
            blend=self.blend, sketch=self.sketch, chunk=self.chunk, sinks=self.sinks, recent=self.recent
        )
        return Pipeline(score, select=LowestScore(self.sinks, self.recent), decode=False)
