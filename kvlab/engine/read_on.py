"""Read more tokens with several caches that have read texts of unequal lengths, in one batch where their layers can."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out.fan_out_cache import FanOutCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.errors import is_out_of_memory


@torch.inference_mode()
def read_on(
    model: PreTrainedModel,
    device: torch.device,
    caches: Sequence[CompressedCache],
    seen: Sequence[int],
    ids: Sequence[list[int]],
) -> list[Tensor | Exception]:
    """For each cache the logits (V,) in float32 after its tokens, or the error that ended it.

    Every cache has one row and has read `seen` tokens; `ids` are equally many tokens for each.
    """
    found: list[Tensor | Exception] = []
    for group in _groups(caches):
        given = torch.tensor([ids[number] for number in group], device=device)
        starts = torch.tensor([seen[number] for number in group], device=device)[:, None]
        positions = starts + torch.arange(given.shape[1], device=device)
        found += _pass(model, device, [caches[number] for number in group], given, positions)
    return found


def _pass(
    model: PreTrainedModel, device: torch.device, caches: Sequence[CompressedCache], ids: Tensor, positions: Tensor
) -> list[Tensor | Exception]:
    # A fan-out cache of caches that were filled apart works on copies of their layers without slots, which is no use
    # where there are such layers: those caches run alone.
    fan_out = FanOutCache.of_filled(caches, device) if len(caches) > 1 else None
    branches = list(fan_out.branches) if fan_out is not None else []
    cache = caches[0] if fan_out is None else fan_out
    options = {"past_key_values": cache, "position_ids": positions, "use_cache": True}
    try:
        logits = model(ids, **options, logits_to_keep=1).logits[:, -1].float()
    except Exception as error:
        if is_out_of_memory(error) or any(branch.error is None for branch in branches):
            raise
        return [branch.error or error for branch in branches] or [error]
    errors = [branch.error for branch in branches] or [None]
    return [error if error is not None else row for error, row in zip(errors, logits, strict=True)]


def _groups(caches: Sequence[CompressedCache]) -> list[list[int]]:
    """Numbers of the caches that run in one batch: all, if every layer is compressed, as others hold states of equal
    length."""
    numbers = list(range(len(caches)))
    if all(isinstance(layer, CompressedLayer) for cache in caches[:1] for layer in cache.layers):
        return [numbers] if numbers else []
    return [[number] for number in numbers]
