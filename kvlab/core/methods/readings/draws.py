"""Random numbers of a decode step, tied to tokens: the same in any batch."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.core.contract.reading import Held
from kvlab.core.contract.token_draws import MIX, stream_start, uniform_draws

LAYER = 1_000_003
PURPOSE = 7_919


def step_draws(held: Held, per_head: int, purpose: int = 0) -> Tensor:
    """Uniform numbers (B, H, `per_head`, S) in [0, 1) for the slots in this step; others for another `purpose`."""
    batch, heads = held.position.shape[:2]
    number = held.heads
    if number is None:
        number = torch.arange(heads, device=held.position.device).expand(batch, -1)
    # The step is part of the stream's number, so that a token draws anew at each step.
    step = held.tokens_seen.long()[:, None, None] * MIX[2]
    own = number[..., None] * per_head + torch.arange(per_head, device=number.device)
    start = stream_start(held.seed * LAYER + held.layer * PURPOSE + purpose)
    streams = (own * MIX[1] + start + step).flatten(1)[..., None]
    place = held.position[:, :, None].expand(-1, -1, per_head, -1).flatten(1, 2)
    return uniform_draws(0, place, streams).unflatten(1, (heads, per_head))
