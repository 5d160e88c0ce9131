"""Passes of the model for lanes of a live session, several in one batch where the layers allow it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlab.cache import CompressedCache
from kvlab.cache.fan_out.fan_out_cache import FanOutCache
from kvlab.cache.layers.compressed_layer import CompressedLayer
from kvlab.cache.prompt_pass import PromptPass
from kvlab.common.errors import is_out_of_memory
from kvlab.live.lane import Lane
from kvlab.models.load import LoadedModel


@torch.inference_mode()
def read_context(loaded: LoadedModel, lanes: Sequence[Lane], ids: Sequence[int]) -> None:
    """Read and compress the context `ids` in lanes that share the pass."""
    if not lanes:
        return
    fan_out = FanOutCache([lane.cache for lane in lanes], loaded.device)
    fan_out.expect(len(ids))
    _run(loaded, fan_out, lanes, torch.tensor([list(ids)], device=loaded.device), None)
    fan_out.copy_recurrent_states()
    for lane in lanes:
        if not lane.failure:
            lane.settle()


def compress_context(
    loaded: LoadedModel, lane: Lane, prompt_pass: PromptPass, full: CompressedCache, ids: Sequence[int]
) -> None:
    """Compress the context `ids` in a lane from a pass that is held, as `full` is."""
    try:
        prompt_pass.fill(lane.cache, full, torch.tensor([list(ids)], device=loaded.device), loaded.model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        lane.fail(error)
    else:
        lane.settle()


@torch.inference_mode()
def next_logits(loaded: LoadedModel, lanes: Sequence[Lane], ids: Sequence[list[int]]) -> dict[Lane, Tensor]:
    """Logits (V,) of each lane after its tokens, equally many in every lane; a lane that fails has none."""
    found: dict[Lane, Tensor] = {}
    device, tokens_of = loaded.device, dict(zip(lanes, ids, strict=True))
    for group in _groups(lanes):
        given = torch.tensor([tokens_of[lane] for lane in group], device=device)
        fan_out = FanOutCache.of_filled([lane.cache for lane in group], device)
        position_ids = torch.cat([lane.position_ids(given.shape[1], device) for lane in group])
        logits = _run(loaded, fan_out, group, given, position_ids)
        for row, lane in enumerate(group):
            lane.tokens_seen += given.shape[1]
            if logits is not None and not lane.failure:
                found[lane] = logits[row].float()
    return found


def _run(
    loaded: LoadedModel, fan_out: FanOutCache, lanes: Sequence[Lane], ids: Tensor, position_ids: Tensor | None
) -> Tensor | None:
    """Logits (R, V) after `ids` (R, q), None if every lane has failed; notes the errors of lanes that fail."""
    options = {"past_key_values": fan_out, "position_ids": position_ids, "use_cache": True, "logits_to_keep": 1}
    logits: Tensor | None = None
    try:
        logits = loaded.model(ids, **options).logits[:, -1]
    except Exception:
        if any(branch.error is None for branch in fan_out.branches):
            raise
    for lane, branch in zip(lanes, fan_out.branches, strict=True):
        if branch.error is not None:
            lane.fail(branch.error)
    return logits


def _groups(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Lanes that run in one batch: all, if every layer is compressed, as others hold states of equal length."""
    if all(isinstance(layer, CompressedLayer) for lane in lanes[:1] for layer in lane.cache.layers):
        return [list(lanes)] if lanes else []
    return [[lane] for lane in lanes]
