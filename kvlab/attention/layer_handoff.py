"""How the attention function learns which cache layer the keys it was given came from.

transformers hands the attention function the tensors that `Cache.update` returned, but not the cache. The cache leaves
the layer here; the attention function, called next in the same thread, takes it if it was given those very keys.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class AttentionCall(NamedTuple):
    """What an attention call brings beside queries, keys and values; made for every layer and step, hence a tuple."""

    scaling: float
    softcap: float | None = None
    padding: Tensor | None = None  # (B, tokens seen)
    module: nn.Module | None = None  # the attention module that calls
    slopes: Tensor | None = None  # (Hq,) of ALiBi
    sinks: Tensor | None = None  # (Hq,) logits of learned sinks


class AttendingLayer(Protocol):
    """A cache layer that does its own attention."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention output (B, Hq, q, d)."""
        ...


_offered: ContextVar[tuple[AttendingLayer, Tensor] | None] = ContextVar("kvlab_offered_layer", default=None)


def offer(layer: AttendingLayer, keys: Tensor) -> None:
    """Leave `layer` for the attention call that receives `keys`."""
    _offered.set((layer, keys))


def take(keys: Tensor) -> AttendingLayer | None:
    """The layer these keys came from, or None when they are not from a compressed layer."""
    offered = _offered.get()
    _offered.set(None)
    return offered[0] if offered is not None and offered[1] is keys else None
