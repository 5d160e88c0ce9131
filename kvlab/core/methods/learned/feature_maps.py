"""LESS's feature maps: phi(q) psi(k) approximates exp(q k / sqrt(d)), with non-negative features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu

Form = Literal["exponential", "gelu"]

HIGHEST = 30.0  # largest exponent: sums of feature products over a million tokens still fit in float32
UNTRAINED_HIDDEN = 64


@dataclass(frozen=True)
class FeatureMaps:
    """Maps of one layer: H KV heads, G query heads per group, d head_dim, m hidden units, R the rank.

    `exponential`: phi(q) = exp(gelu(q W1) W2 + b), psi(k) likewise, so that a product of features is the exponential of
    a sum, as in attention's own kernel. `gelu` is the paper's: phi(q) = |gelu(gelu(q W1) W2)| and, with u = s
    gelu(gelu(k W1) W2), psi(k) = |u + u M|, where s = exp(b). Every head has its own weights.
    """

    form: Form
    query_in: Tensor  # (H, G, d, m)
    query_out: Tensor  # (H, G, m, R)
    query_bias: Tensor  # (H, G, R)
    key_in: Tensor  # (H, d, m)
    key_out: Tensor  # (H, m, R)
    key_bias: Tensor  # (H, R)
    key_mix: Tensor | None = None  # (H, R, R), form gelu only

    @property
    def heads(self) -> int:
        """Number of KV heads H."""
        return self.key_bias.shape[0]

    @property
    def rank(self) -> int:
        """Rank R."""
        return self.key_bias.shape[-1]

    def of_queries(self, query: Tensor) -> Tensor:
        """phi (B, H, G, q, R), float32, of queries (B, H, G, q, d)."""
        features = _two_layers(query.float(), self.query_in, self.query_out)
        bias = self.query_bias[..., None, :]
        return gelu(features).abs() if self.form == "gelu" else _exponential(features + bias)

    def of_keys(self, key: Tensor) -> Tensor:
        """psi (B, H, S, R), float32, of keys (B, H, S, d)."""
        features, bias = _two_layers(key.float(), self.key_in, self.key_out), self.key_bias[..., None, :]
        if self.key_mix is None:
            return _exponential(features + bias)
        scaled = gelu(features) * _exponential(bias)
        return (scaled + scaled @ self.key_mix).abs()

    def of_heads(self, head: Tensor) -> FeatureMaps:
        """Maps of KV heads `head` (B, W), for states (B, W, ...) of those heads."""
        return self.map(lambda tensor: tensor[head])

    def map(self, change: Callable[[Tensor], Tensor]) -> FeatureMaps:
        """Apply `change` to every tensor."""
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})  # type: ignore[arg-type]  # the fields are tensors

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "form"}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def _two_layers(states: Tensor, into: Tensor, out: Tensor) -> Tensor:
    """gelu(states into) out, of states (B, ..., n, d); weights (..., d, m), (..., m, R), shared or per batch row."""
    if into.dim() == states.dim():
        return gelu(states @ into) @ out
    # Batch rows are concatenated: a broadcasting product would copy the weights for each.
    batch, rows = states.shape[0], states.shape[-2]
    beside = states.movedim(0, -3).flatten(-3, -2)  # (..., B * n, d)
    return (gelu(beside @ into) @ out).unflatten(-2, (batch, rows)).movedim(-3, 0)


def _exponential(features: Tensor) -> Tensor:
    return features.clamp(-HIGHEST, HIGHEST).exp()


def new_maps(
    form: Form,
    heads: int,
    group: int,
    head_dim: int,
    hidden: int,
    rank: int,
    generator: torch.Generator,
    query_size: float = 1.0,
    key_size: float = 1.0,
) -> FeatureMaps:
    """Random maps for queries and keys with these root mean squares; products are small, as a start for fitting.

    `generator` is a CPU generator, whatever the model's device.
    """

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) / (shape[-2] ** 0.5 * size)

    is_gelu = form == "gelu"
    return FeatureMaps(
        form=form,
        query_in=normal(heads, group, head_dim, hidden, size=query_size),
        query_out=normal(heads, group, hidden, rank),
        query_bias=torch.full((heads, group, rank), 0.0 if is_gelu else -3.0),
        key_in=normal(heads, head_dim, hidden, size=key_size),
        key_out=normal(heads, hidden, rank),
        key_bias=torch.full((heads, rank), -4.5 if is_gelu else -1.0),
        key_mix=normal(heads, rank, rank) * 1e-4 if is_gelu else None,
    )


def random_feature_maps(layer: int, heads: int, group: int, head_dim: int, rank: int) -> FeatureMaps:
    """Random maps determined by the arguments, for tests and for timing models without trained maps."""
    generator = torch.Generator().manual_seed(layer)
    return new_maps("exponential", heads, group, head_dim, UNTRAINED_HIDDEN, rank, generator)
