"""Phi-3 with two sets of rotary frequencies throws its cache away when a text outgrows the first; kvlab keeps it.

In `generate` transformers replaces the cache by nothing at the first pass beyond the switch, so that all keys are made
again with the long frequencies. A compressed cache cannot be made again, and a prompt that is already longer would lose
it before its first use: without this, the answer would come from a full cache that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import GenerationMixin, PreTrainedModel


def keep_compressed_cache(model: PreTrainedModel) -> None:
    """From now on `generate` leaves a compressed cache in place; any other cache is treated as before."""
    original: Callable[..., dict[str, Any]] = getattr(model, "prepare_inputs_for_generation")  # noqa: B009
    plain: Callable[..., dict[str, Any]] = GenerationMixin.prepare_inputs_for_generation

    @wraps(original)
    def prepare(input_ids: Any, past_key_values: Any = None, **inputs: Any) -> dict[str, Any]:
        layers = getattr(past_key_values, "layers", ())
        if any(hasattr(layer, "attend") for layer in layers):
            return plain(model, input_ids, past_key_values=past_key_values, **inputs)
        return original(input_ids, past_key_values=past_key_values, **inputs)

    object.__setattr__(model, "prepare_inputs_for_generation", prepare)
