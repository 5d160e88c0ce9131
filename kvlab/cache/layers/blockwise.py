"""Tokens that come in one pass of the model and go through a layer in blocks, one decision after each.

What a layer keeps depends on its own queries, keys and values only, which come in the order of the text. So a layer may
go through all blocks before the next one begins: the result is that of a pass of the model a block.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from kvlab.attention.layer_handoff import AttendingLayer, AttentionCall


class Appending(AttendingLayer, Protocol):
    """A cache layer: it appends states, then attends."""

    cumulative_length: int  # tokens seen, padding counted
    announced: list[int]  # real tokens of each row to come

    def take_in(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, q, d) states; the slots this pass attends to."""
        ...


class InBlocks:
    """Attends in a layer's place to a first prompt that its method wants in blocks of `size` tokens."""

    def __init__(self, layer: Appending, size: int) -> None:
        self.layer, self.size = layer, size

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Output (B, Hq, q, d); budgets are those of the whole prompt.

        Blocks begin at each row's own first token, as they do where it is alone: padding goes to the end and back.
        """
        rows, tokens = query.shape[0], query.shape[2]
        if call.padding is None:
            self.layer.announced = [tokens] * rows
            return attend_in_blocks(self.layer, self.size, query, key, value, call)
        real = call.padding[:, :tokens].bool()
        self.layer.announced = [int(count) for count in real.sum(-1).tolist()]
        order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)
        query, key, value = (_taken(part, order) for part in (query, key, value))
        call = call._replace(padding=real.gather(1, order))
        return _taken(attend_in_blocks(self.layer, self.size, query, key, value, call), order.argsort(-1))


def _taken(states: Tensor, order: Tensor) -> Tensor:
    """Tokens `order` (B, q) of states (B, H, q, d)."""
    return states.gather(2, order[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))


def attend_in_blocks(
    layer: Appending, size: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
) -> Tensor:
    """Output (B, Hq, q, d): each block is appended, attends and is decided about before the next one comes."""
    outputs, before = [], layer.cumulative_length
    for first in range(0, query.shape[2], size):
        block = slice(first, first + size)
        seen = before + min(first + size, query.shape[2])
        padding = None if call.padding is None else call.padding[:, :seen]
        slots = layer.take_in(key[:, :, block], value[:, :, block])
        outputs.append(layer.attend(query[:, :, block], *slots, call._replace(padding=padding)))
    return torch.cat(outputs, 2)
