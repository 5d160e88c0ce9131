"""A sliding layer's window that lets go of the prompt it was cut from."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer


class OwnWindow(DynamicSlidingWindowLayer):
    """transformers keeps the window as a view, so each layer would hold the whole prompt until the next token comes."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values that this pass may see; only the window stays."""
        seen = super().update(key_states, value_states, *args, **kwargs)
        if key_states.shape[-2] > 1 and self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return seen


def with_own_window(layer: Any) -> Any:
    """The same fresh layer of a cache, of whatever kind, with a window of its own where it slides."""
    return OwnWindow(layer.sliding_window) if type(layer) is DynamicSlidingWindowLayer else layer
