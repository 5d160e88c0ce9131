"""Layers with attention and a recurrent state (Falcon-H1, Zamba 2); only the attention part is compressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer, LinearAttentionLayer

from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings


class HybridLayer(CompressedLayer, LinearAttentionLayer):  # type: ignore[misc]  # both bases define the states of a layer
    """Compressed slots next to transformers' recurrent state, whose size does not depend on the text."""

    is_croppable = False

    def __init__(self, layer_idx: int, settings: LayerSettings, rank: int, number_of_states: int = 1) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        CompressedLayer.__init__(self, layer_idx, settings, rank)

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        CompressedLayer.reset(self)

    def lazy_initialization(self, *states: Tensor, **named: Any) -> None:  # type: ignore[override]  # of two bases with unlike arguments
        """Initialize slots (positional states) or the recurrent state (keyword states), as transformers does."""
        if states:
            CompressedLayer.lazy_initialization(self, *states)
        else:
            LinearAttentionLayer.lazy_initialization(self, **named)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map_state(lambda state: state[indices.to(state.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map_state(lambda state: state.repeat_interleave(repeats, dim=0))

    def _map_state(self, change: Callable[[Tensor], Tensor]) -> None:
        for states in (self.conv_states, self.recurrent_states):
            states.update({index: change(state) for index, state in states.items() if state is not None})


class OwnWindow(DynamicSlidingWindowLayer):
    """Sliding window that copies its states: transformers keeps a view, which would keep the whole prompt alive."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return all keys and values this pass may see; only the window is kept."""
        states = super().update(key_states, value_states, *args, **kwargs)
        if key_states.shape[-2] > 1 and self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return states
