"""Attention of the queries that predict the answer, in the full cache and in a compressed one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.cache import CompressedCache
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.view import Slots, View
from kvlab.restore.shared_prompt import Prompt


class AnswerAttention:
    """Observer (`kvlab.cache.settings.Observer`) that sums attention to prompt tokens while a continuation is decoded.

    Step r predicts token r; steps `first` to `last` are summed, except step 0, which is the prompt's. A merged slot's
    attention counts for the token at its position.
    """

    def __init__(self, tokens: int, first: int, last: int) -> None:
        self.tokens, self.first, self.last, self.step = tokens, first, last, 0
        self.sums: dict[int, Tensor] = {}

    def begin_step(self) -> None:
        self.step += 1

    def attended(self, layer_idx: int, slots: Slots, seen: PassSeen, output: Tensor) -> None:
        """Add this step's attention if it predicts a token of the answer."""
        if self.first <= self.step <= self.last:
            row = by_token(slots, seen.last_mass(), self.tokens)
            self.sums[layer_idx] = row if layer_idx not in self.sums else self.sums[layer_idx] + row

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do."""

    def mean(self, layers: tuple[int, ...], heads: int) -> np.ndarray:
        """(layers, heads, prompt tokens) mean over the steps; zeros if the answer is the first token alone."""
        if not self.sums:
            return np.zeros((len(layers), heads, self.tokens), np.float32)
        count = self.last - max(self.first, 1) + 1
        return np.stack([self.sums[layer].cpu().numpy() for layer in layers]) / count


def by_token(slots: Slots, of_slots: Tensor, tokens: int) -> Tensor:
    """Scatter (1, H, S) numbers of slots to prompt tokens: (H, `tokens`)."""
    valid = (slots.valid & (slots.position < tokens))[0]
    place = slots.position[0].long().clamp(0, tokens - 1)
    nothing = torch.zeros(valid.shape[0], tokens, device=valid.device)
    return nothing.scatter_add(1, place, of_slots[0].float() * valid)


def prompt_attention(prompt: Prompt) -> np.ndarray:
    """(layers, heads, prompt tokens) attention of the prompt's last query, before the decision."""
    held = prompt.prefix.prompt_cache.settings.pending
    assert held is not None
    return np.stack([held[rank].seen.last_mass()[0].float().cpu().numpy() for rank in range(len(prompt.layers))])


def own_slots(cache: CompressedCache, tokens: int) -> np.ndarray:
    """(layers, heads, prompt tokens) bool: tokens with a slot of their own."""
    masks = []
    for layer in cache.compressed_layers():
        slots = layer.slots
        assert slots is not None
        masks.append((by_token(slots, (slots.votes <= 1).float(), tokens) > 0).cpu().numpy())
    return np.stack(masks)


def held_slots(cache: CompressedCache) -> int:
    """Number of valid slots over all layers and heads."""
    return sum(int(table.live().sum()) for layer in cache.compressed_layers() for table in layer.tables)
