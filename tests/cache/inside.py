"""A compressed layer driven by hand inside a stand-in for an attention module, which projects queries and outputs."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from kvlab.core.attention.layer_handoff import AttentionCall
from tests.cache.layers import DIM, draw
from tests.methods.merging import Layer

HEADS, GROUP, HIDDEN = 2, 2, 12


class Attention(nn.Module):
    """Projections of `HEADS * GROUP` query heads, and nothing else."""

    def __init__(self, seed: int = 40) -> None:
        super().__init__()
        self.head_dim, self.layer_idx = DIM, 0
        self.config = SimpleNamespace(num_attention_heads=HEADS * GROUP, model_type="stand-in")
        self.q_proj = nn.Linear(HIDDEN, HEADS * GROUP * DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * GROUP * DIM, HIDDEN, bias=True)
        with torch.no_grad():
            self.q_proj.weight.copy_(draw(seed, HEADS * GROUP * DIM, HIDDEN) * 0.6)
            self.o_proj.weight.copy_(draw(seed + 1, HIDDEN, HEADS * GROUP * DIM))


def feed(layer: Layer, module: Attention, states: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention output of one pass of `module` over `states` (B, q, HIDDEN)."""
    keys, values = layer.layer.update(key.clone(), value.clone())
    with torch.no_grad():
        call = AttentionCall(DIM**-0.5, module=module, hidden_states=states)
        return layer.layer.attend(query, keys, values, call)


def output_part(module: Attention, head: int, value: Tensor) -> Tensor:
    """(HIDDEN,) what `value` (d,) of one query head adds to the hidden states, through the whole projection."""
    joined = torch.zeros(HEADS * GROUP * DIM)
    joined[head * DIM : (head + 1) * DIM] = value
    with torch.no_grad():
        return module.o_proj(joined) - module.o_proj.bias
