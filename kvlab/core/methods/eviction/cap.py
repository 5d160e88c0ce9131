"""CapKV: keep the tokens whose values add most to what attention can still say."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from kvlab.core.contract import AttentionPass, Capabilities, LowestScore, Method, Pipeline, Preset, Slots, register
from kvlab.core.methods.scorers.expected_attention import ExpectedAttention
from kvlab.core.methods.scorers.sampled_queries import average_turn


@dataclass(frozen=True)
class Capacity(ExpectedAttention):
    """Score_j = w_j v_j' (I + sum_i w_i v_i v_i')^-1 v_j with w_j = exp(tau (cos(k_j, mu) - the largest cosine)).

    mu is a query head's mean query without the first `sinks` tokens, rotated by the mean rotation of the `n_future`
    positions after the text; scores are averaged over the group. The sum of the scores is what the slots add to the
    log-determinant, to first order. The first `sinks` tokens score above all others. Prompt only.
    """

    costs_no_step: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities()  # the prompt only

    tau: float = 5.0

    def _score(
        self, slots: Slots, layer_pass: AttentionPass, mean: Tensor, covariance: Tensor, start: Tensor
    ) -> Tensor:
        if layer_pass.rotary is not None:
            mean = average_turn(mean, layer_pass.rotary, start, self.n_future)
        competing = slots.valid & (slots.position >= self.sinks)
        anchor = normalize(mean.squeeze(2).unflatten(1, (slots.keys.shape[1], -1)), dim=-1)  # (B, H, G, d)
        cosine = (anchor @ normalize(slots.keys.float(), dim=-1).mT).masked_fill(~competing[:, :, None], -torch.inf)
        weight = (self.tau * (cosine - cosine.amax(-1, keepdim=True))).exp().nan_to_num(0.0)  # (B, H, G, S)
        value = slots.values.float()
        # by query head, so that weighted values are in memory for one of the group at a time
        parts = []
        for head_weight in weight.unbind(2):
            scaled = value * head_weight.sqrt()[..., None]
            matrix = scaled.mT @ scaled + torch.eye(value.shape[-1], device=value.device)
            factor = torch.linalg.cholesky_ex(matrix).L
            whitened = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)  # (B, H, d, S)
            parts.append(whitened.square().sum(2))
        score = torch.stack(parts, 2).mean(2)
        sink = slots.valid & (slots.position < self.sinks)
        return torch.where(sink, score.amax(-1, keepdim=True) + 1, score)


@register
class CapKV(Method):
    """Keeps the tokens that contribute most to the log-determinant of the values, weighted by the mean query's cosine.

    A value in a direction that many others span adds little, so redundant tokens go. Follows kvpress (cap_press.py):
    keys and mean query are of unit length, and the mean query is rotated ahead as in ExpectedAttention; the paper has
    plain dot products. Acts once, after the prompt.
    """

    name = "cap"
    family = "eviction"
    title = "CapKV"

    tau: float = Field(5.0, ge=0, description="sharpness of the weights exp(tau cosine)")
    n_future: int = Field(512, ge=1, description="positions ahead over which the rotation is averaged")
    sinks: int = Field(4, ge=0, description="first tokens excluded from the mean query, which always stay")

    paper = "https://arxiv.org/abs/2604.25975"
    presets = {
        "paper": Preset(
            "the class of kvpress with its defaults",
            {
                "tau": (5.0, "kvpress, cap_press.py, tau"),
                "n_future": (512, "kvpress, cap_press.py, n_future_positions"),
                "sinks": (4, "kvpress, cap_press.py, n_sink"),
            },
            beyond="The paper's dot products are not normalized. kvpress adds 1e-6 to the weights inside the matrix.",
        ),
    }

    def pipeline(self) -> Pipeline:
        score = Capacity(n_future=self.n_future, sinks=self.sinks, tau=self.tau)
        return Pipeline(score, select=LowestScore(self.sinks), decode=False)
