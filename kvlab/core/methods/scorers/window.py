"""Attention from an observation window at the end of the prompt, pooled over neighbours (SnapKV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import AttentionPass, Slots
from kvlab.core.methods.scorers.wrapper import PromptScorer

Edges = Literal["tokens", "zeros"]


@dataclass(frozen=True)
class WindowAttention(PromptScorer):
    """Score_j = pooled sum over the last `window` queries of A[query, j], mean over the group, set at prefill.

    Scores then stay fixed or, with `every_step`, add each query's attention and decay by 1 - 1/window, so that they
    remain sums over about `window` queries.

    At the ends of the text average pooling counts real tokens only (`edges="tokens"`). Counting zeros beyond them, as
    the authors' code does (`zeros`), reduces the first tokens, including the sink, by up to 2/5.
    """

    window: int = 32
    kernel: int = 7
    pooling: Literal["max", "average"] = "max"
    edges: Edges = "tokens"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(prompt_rows=self.prompt_rows, recalls=self.window, recall=self.recall)

    def prompt_rows(self, tokens: int) -> int:
        return self.window

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0 unless `every_step`."""
        if not first and not self.every_step:
            return {}
        if not first:
            keep = 1 - 1 / self.window
            if layer_pass.num_new == 1:
                return {"score": slots.score * keep + layer_pass.column_mass()}
            age = torch.arange(layer_pass.num_new - 1, -1, -1, device=slots.score.device, dtype=torch.float32)
            # Padding in front of a later turn is no query. Slots of this pass have no score to decay.
            return {"score": slots.score * keep ** layer_pass.rows_seen() + layer_pass.column_mass(None, keep**age)}
        newest = slots.position.amax(-1, keepdim=True)
        candidates = slots.valid & (slots.position <= newest.int() - self.window)
        return {"score": self._pool(layer_pass.column_mass(self.window) * candidates, candidates)}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 from the window of newest queries; neighbours are those in the text."""
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True)
        candidates = slots.valid & (slots.position <= newest.int() - self.window)
        mass = layer_pass.recalled_mass(slots.position, self.window).mean(2).sum(2) * candidates
        order = slots.in_text()
        pooled = self._pool(mass.gather(2, order), candidates.gather(2, order))
        return {"score": torch.zeros_like(pooled).scatter(2, order, pooled)}

    def _pool(self, mass: Tensor, candidates: Tensor) -> Tensor:
        half = self.kernel // 2
        if self.pooling == "max":
            return max_pool1d(mass, self.kernel, 1, half)
        if self.edges == "zeros":
            return avg_pool1d(mass, self.kernel, 1, half)
        real = avg_pool1d(candidates.float(), self.kernel, 1, half)
        return torch.where(real > 0, avg_pool1d(mass, self.kernel, 1, half) / real.clamp_min(1e-9), 0.0)
