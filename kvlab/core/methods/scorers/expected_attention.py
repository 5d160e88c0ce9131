"""Expected attention of future queries, modelled as Gaussian (ExpectedAttention)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, Slots, round_relatively
from kvlab.core.methods.scorers.sampled_queries import ROW_BLOCK, average_turn
from kvlab.core.methods.scorers.value_norm import output_norms

Weight = Literal["value", "output", "none"]
RECALLED = 128


@dataclass(frozen=True)
class ExpectedAttention:
    """Score_j = softmax_j(s mu.k_j + s^2 k_j' C k_j / 2), mean over the group, times a weight of the value.

    mu and C are mean and covariance (divided by n) of each query head's queries before rotation, without the first
    `sinks` tokens, both rotated by the mean rotation of the `n_future` positions after the text; s is the model's
    scaling. For Gaussian q, E exp(s q.k) is exp of that logit. `weight`: (score + `epsilon`) times the length of the
    value, or of its output projection per query head. The first `sinks` tokens score above all others. Soft-capping is
    ignored. While decoding the last 128 queries are the sample.
    """

    n_future: int = 512
    sinks: int = 4
    covariance: bool = True
    weight: Weight = "value"
    epsilon: float = 0.0
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=dict, hash=False)
    recalls: int = RECALLED

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(recalls=self.recalls, recall=self.recall)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        states = layer_pass.hidden_states
        assert states is not None, "a scorer that needs hidden states is given them inside a model"
        tokens = slots.valid[:, 0].sum(-1)
        # heads have equal slots before the first decision
        rows = slots.valid[:, 0] & (slots.position[:, 0] >= self.sinks)

        def blocks() -> Iterator[tuple[Tensor, Tensor]]:
            for block, real in zip(states.split(ROW_BLOCK, 1), rows.split(ROW_BLOCK, 1), strict=True):
                query = layer_pass.project_queries(block, tokens + self.n_future // 2).float()
                yield (
                    (query if layer_pass.rotary is None else layer_pass.rotary.lengthened(query)),
                    real[:, None, :, None],
                )

        return {"score": self._score(slots, layer_pass, *moments(blocks), tokens)}

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 of the current slots, from the moments of the newest queries."""
        query, position = layer_pass.recalled_queries(self.recalls)
        if layer_pass.rotary is not None:
            query = layer_pass.rotary.turn(query, -position[:, None].expand(query.shape[:3]))
        real = (position >= self.sinks)[:, None, :, None]
        return {
            "score": self._score(
                slots, layer_pass, *moments(lambda: iter([(query.float(), real)])), position[:, -1] + 1
            )
        }

    def _score(
        self, slots: Slots, layer_pass: AttentionPass, mean: Tensor, covariance: Tensor, start: Tensor
    ) -> Tensor:
        if layer_pass.rotary is not None:
            mean = average_turn(mean, layer_pass.rotary, start, self.n_future)
            covariance = average_turn(covariance, layer_pass.rotary, start, self.n_future).mT
            covariance = average_turn(covariance, layer_pass.rotary, start, self.n_future)
        candidates = (slots.valid & (slots.position >= self.sinks))[:, :, None]
        # Log of the expected exp(logit), (B, H, G, S), in blocks of keys.
        mean, covariance = (part.unflatten(1, (slots.keys.shape[1], -1)) for part in (mean, covariance))
        found = []
        for block in slots.keys.split(ROW_BLOCK, 2):
            key = block.float()[:, :, None]  # (B, H, 1, S, d)
            logit = layer_pass.scaling * (key @ mean.mT).squeeze(-1)
            if self.covariance:
                logit = logit + layer_pass.scaling**2 / 2 * ((key @ covariance) * key).sum(-1)
            found.append(logit)
        logits = torch.cat(found, -1)
        share = torch.softmax(logits.masked_fill(~candidates, -torch.inf), -1).nan_to_num(0.0)
        if self.weight == "output":
            weight = output_norms(slots.values, layer_pass.output_weight(), 2)  # (B, H, G, S)
        elif self.weight == "value":
            weight = slots.values.float().norm(dim=-1)[:, :, None]
        else:
            weight = slots.score.new_ones(1)
        score = round_relatively(((share + self.epsilon) * weight * candidates).mean(2))
        return torch.where(slots.valid & (slots.position < self.sinks), score.amax(-1, keepdim=True) + 1, score)


def moments(blocks: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """(mean (B, Hq, 1, d), covariance (B, Hq, d, d)) of queries that `blocks()` yields with masks.

    Queries are (B, Hq, n, d), masks (B, 1, n, 1). The covariance divides by n; masked queries are ignored.
    """
    count: Tensor | float = 0.0
    total: Tensor | float = 0.0
    for query, real in blocks():
        count = count + real.sum(2, keepdim=True)
        total = total + query.masked_fill(~real, 0.0).sum(2, keepdim=True)
    assert isinstance(count, Tensor) and isinstance(total, Tensor)
    mean = total / count.clamp_min(1)
    spread: Tensor | float = 0.0
    for query, real in blocks():
        apart = (query - mean).masked_fill(~real, 0.0)
        spread = spread + apart.mT @ apart
    assert isinstance(spread, Tensor)
    return mean, spread / count.clamp_min(1)
