"""How the attention function learns which cache layer the keys it was given came from.

transformers hands the attention function the tensors that `Cache.update` returned, but not the cache. The cache leaves
the layer here; the attention function, called next in the same thread, takes it if it was given those very keys.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn


class AttendingLayer(Protocol):
    """A cache layer that does its own attention."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        scaling: float,
        softcap: float | None,
        module: nn.Module | None = None,
        slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention output (B, Hq, q, d); `slopes` (Hq,) of ALiBi, `sinks` (Hq,) logits of learned sinks."""
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
