"""Small networks that predict slot scores from an attention module's hidden states: KVzap's and Fast KVzip's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, softplus

NORM_EPSILON = 1e-6  # of Qwen3RMSNorm, the original's norm


@dataclass(frozen=True)
class ScoreHead:
    """Score network of one layer: a linear map of hidden states to H scores, or two with a GELU between (`inner`).

    `weight` (H, D) and `bias` (H,), or (H, K) after `inner` (K, D) and `inner_bias` (K,).
    """

    weight: Tensor
    bias: Tensor
    inner: Tensor | None = None
    inner_bias: Tensor | None = None

    @property
    def width(self) -> int:
        """Width D of hidden states."""
        return (self.weight if self.inner is None else self.inner).shape[1]

    def predict(self, states: Tensor) -> Tensor:
        """Log scores (B, H, q) float32 of hidden states (B, q, D)."""
        own = self.to(states.device)
        given = states.float()
        if own.inner is not None:
            given = gelu(linear(given, own.inner, own.inner_bias))
        return linear(given, own.weight, own.bias).transpose(1, 2)

    def to(self, device: torch.device) -> ScoreHead:
        return ScoreHead(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


@dataclass(frozen=True)
class SinkGate:
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

    @property
    def width(self) -> int:
        """Width D of hidden states."""
        return self.key.shape[-1]

    def predict(self, states: Tensor) -> Tensor:
        """Log gates (B, H, q) float32 of hidden states (B, q, D); in log space, so that small gates differ."""
        own = self.to(states.device)
        given, (heads, group, rank) = states.float(), own.query.shape[:3]
        query = linear(given, own.query.flatten(0, 2), own.query_bias.flatten()).unflatten(-1, (heads, group, rank))
        key = linear(given, own.key.flatten(0, 1)).unflatten(-1, (heads, rank))
        query = rms_norm(query, (rank,), own.query_norm, NORM_EPSILON)
        key = rms_norm(key, (rank,), own.key_norm, NORM_EPSILON)
        logit = torch.einsum("bqhgr,bqhr->bqhg", query, key) / math.sqrt(rank) + own.bias
        resting = (torch.einsum("bqhgr,hsr->bqhgs", query, own.sinks) / math.sqrt(rank)).logsumexp(-1)
        gates = -softplus(resting - logit)  # log of 1 / (1 + exp(resting - logit))
        return (gates.logsumexp(-1) - math.log(group)).transpose(1, 2)

    def to(self, device: torch.device) -> SinkGate:
        return SinkGate(**{name: tensor.to(device) for name, tensor in vars(self).items()})

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))


ScoreNetwork = ScoreHead | SinkGate


def random_score_head(states: Tensor, heads: int, layer: int) -> ScoreHead:
    """Random weights determined by the layer, for tests and timing."""
    source = torch.Generator().manual_seed(layer)
    size = states.shape[-1]
    return ScoreHead(torch.randn(heads, size, generator=source) / size**0.5, torch.zeros(heads))


def random_sink_gate(states: Tensor, heads: int, group: int, layer: int) -> SinkGate:
    """A random gate determined by the arguments, for tests and timing."""
    return new_gate(states.shape[-1], heads, group, 16, 16, torch.Generator().manual_seed(layer))


def new_gate(size: int, heads: int, group: int, rank: int, sinks: int, source: torch.Generator) -> SinkGate:
    """A gate as training begins: uniform projections as in `torch.nn.Linear`, sink keys and biases zero."""

    def drawn(*shape: int) -> Tensor:
        return (2 * torch.rand(*shape, generator=source) - 1) / size**0.5

    query = drawn(heads, group, rank, size)
    bias = drawn(heads, group, rank)
    key = drawn(heads, rank, size)
    norms = torch.ones(rank), torch.ones(rank)
    return SinkGate(query, bias, key, *norms, torch.zeros(heads, sinks, rank), torch.zeros(heads, group))
