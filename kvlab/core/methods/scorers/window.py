"""Attention from an observation window at the end of the prompt, pooled over neighbours (SnapKV)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from kvlab.core.contract import AttentionPass, Slots, log_total, round_relatively
from kvlab.core.methods.scorers.value_norm import output_norms
from kvlab.core.methods.scorers.wrapper import WindowScorer

Edges = Literal["tokens", "zeros"]
Aggregate = Literal["mean", "max", "worst"]
TINY = 1e-20


@dataclass(frozen=True)
class WindowAttention(WindowScorer):
    """Score_j = `aggregate` of decay^age A[query, j], pooled, over the last `window` queries and the group's heads.

    `decay` is the weight of a query relative to the next one: 1 counts all alike, 0 the newest alone. `aggregate`:

    - `mean`: sum over queries, mean over heads (SnapKV);
    - `max`: the largest of any query and head, pooled over neighbours first;
    - `worst`: that maximum with two corrections and a weight (DefensiveKV's code): each query's attention to the slots
      before the window keeps its sum when it is pooled, no slot scores below its head's mean, and scores are multiplied
      by ||W_o v||_1, mean over the group, relative to that of the token in the layer's other heads. Decisions while
      decoding, when heads hold other tokens, take it relative to the head's other slots.

    The score is set at prefill. It then stays fixed or, with `every_step`, adds each query's attention, mean over the
    group, and decays by 1 - 1/window, so that it remains a sum over about `window` queries.

    At the ends of the text average pooling counts real tokens only (`edges="tokens"`). Counting zeros beyond them, as
    the authors' code does (`zeros`), reduces the first tokens, including the sink, by up to 2/5.
    """

    by_column: ClassVar[bool] = True  # the sum over a prompt's queries is all that aggregate `mean` needs

    kernel: int = 7
    pooling: Literal["max", "average"] = "max"
    edges: Edges = "tokens"
    aggregate: Aggregate = "mean"
    decay: float = 1.0

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
        rows = min(self.window, layer_pass.num_new)
        newest = slots.position.amax(-1, keepdim=True)
        candidates = slots.valid & (slots.position <= newest.int() - self.window)
        if self.aggregate == "mean" and self.by_column:
            mass = layer_pass.column_mass(self.window, self._weights(rows, slots.score.device))
            return {"score": self._pool(mass * candidates, candidates)}
        found = self._aggregated(query_mass(slots, layer_pass, rows), candidates)
        if self.aggregate == "worst":
            norm = _norm(slots, layer_pass)
            found = found * (norm / norm.mean(1, keepdim=True).clamp_min(TINY))
        return {"score": found}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 from the window of newest queries; neighbours are those in the text."""
        newest = slots.position.masked_fill(~slots.valid, -1).amax(-1, keepdim=True)
        candidates = slots.valid & (slots.position <= newest.int() - self.window)
        mass = layer_pass.recalled_mass(slots.position, self.window)
        order = slots.in_text()
        mass = mass.gather(4, order[:, :, None, None].expand_as(mass))
        found = self._aggregated(mass, candidates.gather(2, order))
        score = torch.zeros_like(found).scatter(2, order, found)
        if self.aggregate == "worst":
            norm = _norm(slots, layer_pass)
            score = score * (norm / _mean(norm, candidates).clamp_min(TINY))
        return {"score": score}

    def _weights(self, rows: int, device: torch.device) -> Tensor | None:
        if self.decay == 1.0:
            return None
        return self.decay ** torch.arange(rows - 1, -1, -1, device=device, dtype=torch.float32)

    def _aggregated(self, mass: Tensor, candidates: Tensor) -> Tensor:
        """Scores (B, H, S) of `candidates` (B, H, S) from attention (B, H, G, r, S), neighbours side by side."""
        weights = self._weights(mass.shape[3], mass.device)
        mass = (mass if weights is None else mass * weights[:, None]) * candidates[:, :, None, None]
        if self.aggregate == "mean":
            return self._pool(mass.mean(2).sum(2), candidates)
        pooled = self._pool(mass, candidates) * candidates[:, :, None, None]
        if self.aggregate == "max":
            return pooled.amax((2, 3))
        total = mass.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True).clamp_min(TINY)
        most = (pooled * total).amax((2, 3))
        return most.maximum(_mean(most, candidates)) * candidates

    def _pool(self, mass: Tensor, candidates: Tensor) -> Tensor:
        """`mass` (B, H, ..., S) over neighbours."""
        half = self.kernel // 2
        flat = mass.flatten(1, -2)
        if self.pooling == "max":
            return max_pool1d(flat, self.kernel, 1, half).view_as(mass)
        pooled = avg_pool1d(flat, self.kernel, 1, half).view_as(mass)
        if self.edges == "zeros":
            return pooled
        real = avg_pool1d(candidates.float(), self.kernel, 1, half)
        real = real.view(*real.shape[:2], *[1] * (mass.dim() - 3), -1)
        return torch.where(real > 0, pooled / real.clamp_min(1e-9), 0.0)


def query_mass(slots: Slots, layer_pass: AttentionPass, rows: int) -> Tensor:
    """Attention (B, H, G, r, S) of the last `rows` queries; 0 for rows of padding."""
    logits = layer_pass.last_logits(rows) + slots.log_mass_of_heads()[:, :, :, None]
    return (logits - log_total(logits, layer_pass.sinks)).exp().nan_to_num(0.0)


def _norm(slots: Slots, layer_pass: AttentionPass) -> Tensor:
    """||W_o v||_1 (B, H, S), mean over the group, rounded so that repeated tokens have equal ones."""
    return round_relatively(output_norms(slots.values, layer_pass.output_weight(), 1).mean(2))


def _mean(numbers: Tensor, among: Tensor) -> Tensor:
    """Mean (B, H, 1) of `numbers` (B, H, S) over the slots `among` (B, H, S)."""
    return (numbers * among).sum(-1, keepdim=True) / among.sum(-1, keepdim=True).clamp_min(1)
