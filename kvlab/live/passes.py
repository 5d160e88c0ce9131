"""Passes of the model for lanes of a live session, several in one batch where the layers allow it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out.fan_out_cache import FanOutCache
from kvlab.core.cache.prompt_pass import PromptPass
from kvlab.core.errors import is_out_of_memory
from kvlab.engine.forward import read_on
from kvlab.live.lane import Lane
from kvlab.models.load import LoadedModel


@torch.inference_mode()
def read_context(loaded: LoadedModel, lanes: Sequence[Lane], ids: Sequence[int]) -> None:
    """Read and compress the context `ids` in lanes that share the pass."""
    fan_out = FanOutCache([lane.cache for lane in lanes], loaded.device)
    branches = list(fan_out.branches)
    fan_out.expect(len(ids))
    try:
        given = torch.tensor([list(ids)], device=loaded.device)
        loaded.model(given, past_key_values=fan_out, use_cache=True, logits_to_keep=1)
    except Exception:
        if any(branch.error is None for branch in branches):
            raise
    for lane, branch in zip(lanes, branches, strict=True):
        if branch.error is not None:
            lane.fail(branch.error)
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


def next_logits(loaded: LoadedModel, lanes: Sequence[Lane], ids: Sequence[list[int]]) -> dict[Lane, Tensor]:
    """Logits (V,) of each lane after its tokens, equally many in every lane; a lane that fails has none."""
    caches = [lane.cache for lane in lanes]
    seen = [lane.tokens_seen for lane in lanes]
    found: dict[Lane, Tensor] = {}
    results = read_on(loaded.model, loaded.device, caches, seen, ids)
    for lane, given, logits in zip(lanes, ids, results, strict=True):
        lane.tokens_seen += len(given)
        if isinstance(logits, Exception):
            lane.fail(logits)
        else:
            found[lane] = logits
    return found
