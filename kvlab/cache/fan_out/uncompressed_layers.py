"""Select and join batch rows of transformers' own cache layers: sliding windows and recurrent states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

STATES = ("keys", "values")
RECURRENT = ("conv_states", "recurrent_states")  # dictionaries of states by number


def select_rows(layer: Any, rows: Sequence[int]) -> Any:
    """A copy of the layer with batch rows `rows`; rows may repeat."""
    return _changed([layer], lambda parts: parts[0][torch.tensor(rows, dtype=torch.int64, device=parts[0].device)])


def join_layers(layers: Sequence[Any]) -> Any:
    """A copy of the first layer with the batch rows of all layers, which have seen equally many tokens."""
    return _changed(layers, torch.cat)


def take_states(layer: Any, other: Any) -> None:
    """Let a layer with a recurrent state use that of another one."""
    for name in vars(LinearAttentionLayer(1)):
        setattr(layer, name, getattr(other, name))


def copy_states(layer: Any) -> LinearAttentionLayer:
    """A layer with a copy of another one's recurrent state."""
    own = LinearAttentionLayer(layer.number_of_states)
    for name in vars(own):
        setattr(own, name, copy.deepcopy(getattr(layer, name)))
    return own


def _changed(layers: Sequence[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    """A copy of the first layer; each of its states is `change` of that state in all layers."""
    own = copy.copy(layers[0])
    for name in STATES:
        if isinstance(getattr(own, name, None), Tensor):
            setattr(own, name, change([getattr(layer, name) for layer in layers]))
    for name in RECURRENT:
        if hasattr(own, name):
            states = {number: [getattr(layer, name)[number] for layer in layers] for number in getattr(own, name)}
            setattr(own, name, {n: None if parts[0] is None else change(parts) for n, parts in states.items()})
    for name, flags in vars(own).items():
        if isinstance(flags, dict) and name not in RECURRENT:
            setattr(own, name, dict(flags))
    return own
