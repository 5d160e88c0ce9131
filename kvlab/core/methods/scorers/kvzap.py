"""KVzap and Fast KVzip: second pass scores predicted from hidden states."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, softplus

from kvlab.core.contract import AttentionPass, Capabilities, Slots, TensorFields, round_to_step
from kvlab.core.methods.scorers.kvzip import most_looked_at

NORM_EPSILON = 1e-6  # of Qwen3RMSNorm, the original's norm


@dataclass(frozen=True)
class ScoreHead(TensorFields):
    """Score network of one layer: a linear map of hidden states to H scores, or two with a GELU between (`inner`).

    `weight` (H, D) and `bias` (H,), or (H, K) after `inner` (K, D) and `inner_bias` (K,).
    """

    weight: Tensor
    bias: Tensor
    inner: Tensor | None = None
    inner_bias: Tensor | None = None

    def predict(self, states: Tensor) -> Tensor:
        """Log scores (B, H, q) float32 of hidden states (B, q, D)."""
        net = self.map(lambda tensor: tensor.to(states.device))
        given = states.float()
        if net.inner is not None:
            given = gelu(linear(given, net.inner, net.inner_bias))
        return linear(given, net.weight, net.bias).transpose(1, 2)


@dataclass(frozen=True)
class SinkGate(TensorFields):
    """Low-rank sink-attention gate of one layer (Fast KVzip, arXiv 2601.17668): H KV heads, G queries each, rank r.

    A hidden state h (D,) has a key k = norm(K h) and G queries q_g = norm(Q h + c) per KV head. Each query attends to
    the token's own key and to s learned sink keys; the gate, in (0, 1), is the mean over g of

        exp(q_g k / sqrt(r) + b_g) / (exp(q_g k / sqrt(r) + b_g) + sum_s exp(q_g sink_s / sqrt(r)))

    `query` (H, G, r, D), `query_bias` (H, G, r), `key` (H, r, D), `query_norm` and `key_norm` (r,), `sinks` (H, s, r),
    `bias` (H, G). The authors' training code adds b twice (optim.py), their gate once (gate.py), as here.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    query_norm: Tensor
    key_norm: Tensor
    sinks: Tensor
    bias: Tensor

    def predict(self, states: Tensor) -> Tensor:
        """Log gates (B, H, q) float32 of hidden states (B, q, D); in log space, so that small gates differ."""
        net = self.map(lambda tensor: tensor.to(states.device))
        given, (heads, group, rank) = states.float(), net.query.shape[:3]
        query = linear(given, net.query.flatten(0, 2), net.query_bias.flatten()).unflatten(-1, (heads, group, rank))
        key = linear(given, net.key.flatten(0, 1)).unflatten(-1, (heads, rank))
        query = rms_norm(query, (rank,), net.query_norm, NORM_EPSILON)
        key = rms_norm(key, (rank,), net.key_norm, NORM_EPSILON)
        logit = torch.einsum("bqhgr,bqhr->bqhg", query, key) / math.sqrt(rank) + net.bias
        resting = (torch.einsum("bqhgr,hsr->bqhgs", query, net.sinks) / math.sqrt(rank)).logsumexp(-1)
        gates = -softplus(resting - logit)  # log of 1 / (1 + exp(resting - logit))
        return (gates.logsumexp(-1) - math.log(group)).transpose(1, 2)


ScoreNetwork = ScoreHead | SinkGate


def new_gate(size: int, heads: int, group: int, rank: int, sinks: int, source: torch.Generator) -> SinkGate:
    """A gate as training begins: uniform projections as in `torch.nn.Linear`, sink keys and biases zero."""

    def drawn(*shape: int) -> Tensor:
        return (2 * torch.rand(*shape, generator=source) - 1) / size**0.5

    query = drawn(heads, group, rank, size)
    bias = drawn(heads, group, rank)
    key = drawn(heads, rank, size)
    norms = torch.ones(rank), torch.ones(rank)
    return SinkGate(query, bias, key, *norms, torch.zeros(heads, sinks, rank), torch.zeros(heads, group))


UNTRAINED = "untrained"
Networks = Literal["kvzap", "fast-kvzip"]


@dataclass(frozen=True)
class PredictedScore:
    """Score_j = a small network's prediction from token j's hidden state: the log of its second pass score.

    `heads` names a file of `kvlab fit --method` and `networks` (`mini`: the shipped one; `untrained`: random weights);
    `known` holds the networks by model layer. Later tokens keep score 0, above all logs.

    With `recalls` the score itself is used instead of its log, so that 0 is the minimum: decisions while decoding raise
    a slot's score to the most attention it gets from the newest `recalls` queries.
    """

    costs_no_step: ClassVar[bool] = True

    heads: str = "mini"
    known: Mapping[int, ScoreNetwork] = field(default_factory=dict)
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=dict, hash=False)
    recalls: int = 0
    networks: Networks = "kvzap"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            recalls=self.recalls, recall=lambda slots, layer_pass: most_looked_at(slots, layer_pass, self.recalls)
        )

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        if not first:
            return {}
        states = layer_pass.hidden_states
        assert states is not None, "a scorer that needs hidden states is given them inside a model"
        layer = getattr(layer_pass.module, "layer_idx", None) or 0
        if self.heads == UNTRAINED:
            # Random weights determined by the layer, for tests and timing.
            heads = slots.score.shape[1]
            size = states.shape[-1]
            source = torch.Generator().manual_seed(layer)
            if self.networks == "kvzap":
                network: ScoreNetwork = ScoreHead(
                    torch.randn(heads, size, generator=source) / size**0.5, torch.zeros(heads)
                )
            else:
                network = new_gate(size, heads, layer_pass.query.shape[1] // heads, 16, 16, source)
        else:
            network = self.known[layer]
        score = round_to_step(network.predict(states))  # repeated tokens have equal ones in the first layer
        return {"score": score.exp() if self.recalls else score}
