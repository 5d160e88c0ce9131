"""Blockwise prefill: tokens of one model pass go through a layer in blocks, with a decision after each block.

What a layer keeps depends only on its own queries, keys and values, so a layer can process all blocks before the next
layer starts: the result equals one model pass per block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvlab.core.attention.layer_handoff import AttendingLayer, AttentionCall
from kvlab.core.cache.settings import STATES, LayerSettings


class Appending(AttendingLayer, Protocol):
    """A cache layer that appends states, then attends."""

    cumulative_length: int  # tokens seen, padding included
    announced: list[int]  # real tokens of each row in the announced prompt
    settings: LayerSettings

    def append_states(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Append states (B, H, q, d); returns the slots this pass attends to."""


@dataclass
class BlockwiseAttention:
    """Attends in place of a layer, in blocks of `size` tokens."""

    layer: Appending
    layer_idx: int
    size: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Output (B, Hq, q, d); budgets refer to the whole prompt.

        Blocks begin at each row's first real token, so left padding is moved to the end and back: results do not depend
        on the batch.
        """
        held = self.layer.settings.held
        states = key.nbytes + value.nbytes
        held.record(STATES, states, states)
        order = None
        if call.padding is None:
            self.layer.announced = [query.shape[2]] * query.shape[0]
        else:
            real = call.padding[:, : query.shape[2]].bool()
            self.layer.announced = [int(count) for count in real.sum(-1).tolist()]
            order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)
            query, key, value = (_reordered(part, order) for part in (query, key, value))
            call = call._replace(padding=real.gather(1, order))
        output = attend_in_blocks(self.layer, self.size, query, key, value, call)
        held.record(STATES, 0, 0)
        return output if order is None else _reordered(output, order.argsort(-1))


def _reordered(states: Tensor, order: Tensor) -> Tensor:
    """Tokens `order` (B, q) of states (B, H, q, d)."""
    return states.gather(2, order[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))


def attend_in_blocks(
    layer: Appending, size: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Tensor:
    """Output (B, Hq, q, d): each block is appended, attends and is compressed before the next one."""
    call = call._replace(hidden_states=None, results=None)  # of the whole prompt
    outputs = []
    before = layer.cumulative_length
    for first in range(0, query.shape[2], size):
        block = slice(first, first + size)
        stop = before + min(first + size, query.shape[2])
        padding = None if call.padding is None else call.padding[:, :stop]
        slots = layer.append_states(key[:, :, block], value[:, :, block])
        outputs.append(layer.attend(query[:, :, block], *slots, call._replace(padding=padding)))
    return torch.cat(outputs, 2)
