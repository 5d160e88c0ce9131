"""A single compressed layer driven by hand: no model, chosen keys, values and queries."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.core.attention.layer_handoff import AttentionCall, take_offered_layer
from kvlab.core.budget import Budget
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.methods import make_method

DIM = 8


class HandLayer:
    """Feeds (B, H, q, d) states to one layer of a method and keeps what it attended to."""

    sinks: Tensor | None = None  # (Hq,) logits of learned sinks

    def __init__(self, method: str, budget: float | int, **options: object) -> None:
        every = int(options.pop("compress_every", 1))
        pipeline = make_method(method, **options).pipeline()
        self.layer = CompressedLayer(0, LayerSettings(pipeline, Budget(budget), num_layers=1, compress_every=every))

    def feed(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
        """Attention output of one pass."""
        keys, values = self.layer.update(key.clone(), value.clone())
        attending = take_offered_layer(keys)
        assert attending is not None
        return attending.attend(query, keys, values, AttentionCall(DIM**-0.5, None, padding, sinks=self.sinks))

    def ask(self, query: Tensor) -> Tensor:
        """What a query (B, Hq, 1, d) gets from the table as it is now, nothing changed; float64."""
        slots = self.layer.slots
        assert slots is not None
        group = query.shape[1] // slots.keys.shape[1]
        key, value = (t.double().repeat_interleave(group, 1) for t in (slots.keys, slots.values))
        bias = slots.log_mass.double().masked_fill(~slots.valid, -torch.inf).repeat_interleave(group, 1)
        logits = (query.double() @ key.transpose(-1, -2)) * DIM**-0.5 + bias[:, :, None]
        if self.sinks is not None:
            logits = torch.cat([logits, self.sinks.double().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)], -1)
            return torch.softmax(logits, -1)[..., :-1] @ value
        return torch.softmax(logits, -1) @ value


def draw(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
