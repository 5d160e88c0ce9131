"""What a store will give back of a state, known before it is packed: for methods that repair its rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.stores.code import Code
from kvlab.stores.store import Store


def as_held(store: Store, code: Code | None, states: Tensor, order: Tensor, live: Tensor) -> Tensor:
    """(B, H, S, d) float32: `states` once the `live` (B, H) first slots of `order` (B, H, S) are packed.

    `order` is that of the text. What the store leaves native, and all other slots, are as they were.
    """
    states = states.float()
    if code is None:
        return states
    place, there = store.coded(live, int(live.max()))
    index = order.gather(2, place)[..., None].expand(*place.shape, states.shape[-1])
    own = states.gather(2, index)
    error = code.decode(code.encode(own, there), states.shape[-1]) - own
    return states.scatter_add(2, index, torch.where(there[..., None], error, 0.0))
