"""Phi-3 with two sets of rotary frequencies drops its cache when a text outgrows the first; kvlab keeps it.

In `generate`, transformers discards the cache at the first pass beyond the switch and recomputes all keys with the long
frequencies. A compressed cache cannot be recomputed, and a longer prompt would lose it before its first use, so that
the answer would come from a full cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import GenerationMixin, PreTrainedModel


def keep_compressed_cache(model: PreTrainedModel) -> None:
    """Make `generate` keep a compressed cache; other caches are treated as before."""
    original: Callable[..., dict[str, Any]] = getattr(model, "prepare_inputs_for_generation")  # noqa: B009
    plain: Callable[..., dict[str, Any]] = GenerationMixin.prepare_inputs_for_generation

    @wraps(original)
    def prepare(input_ids: Any, past_key_values: Any = None, **inputs: Any) -> dict[str, Any]:
        layers = getattr(past_key_values, "layers", ())
        if any(hasattr(layer, "attend") for layer in layers):
            return plain(model, input_ids, past_key_values=past_key_values, **inputs)
        return original(input_ids, past_key_values=past_key_values, **inputs)

    object.__setattr__(model, "prepare_inputs_for_generation", prepare)
