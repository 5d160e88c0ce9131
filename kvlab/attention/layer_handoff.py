"""Hand the cache layer of a pass to the attention function.

transformers passes the tensors returned by `Cache.update` to the attention function, but not the cache. The cache
stores the layer here; the attention function, called next in the same thread, takes it if it received those very keys.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from kvlab.attention.pass_results import PassResults


class AttentionCall(NamedTuple):
    """Arguments of an attention call besides queries, keys and values; a tuple because one is created per layer and
    step.
    """

    scaling: float
    softcap: float | None = None
    padding: Tensor | None = None  # (B, tokens seen)
    module: nn.Module | None = None  # the calling attention module
    slopes: Tensor | None = None  # (Hq,) ALiBi slopes
    sinks: Tensor | None = None  # (Hq,) learned-sink logits
    hidden_states: Tensor | None = None  # (B, q, hidden) input of the module, if recorded
    results: PassResults | None = None  # of a pass that several caches share


class AttendingLayer(Protocol):
    """A cache layer that computes its own attention."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention output (B, Hq, q, d)."""
        ...


_offered: ContextVar[tuple[AttendingLayer, Tensor] | None] = ContextVar("kvlab_offered_layer", default=None)


def offer(layer: AttendingLayer, keys: Tensor) -> None:
    """Store `layer` for the attention call that receives `keys`."""
    _offered.set((layer, keys))


def take(keys: Tensor) -> AttendingLayer | None:
    """The layer that offered these keys, or None if they are not from a compressed layer."""
    offered = _offered.get()
    _offered.set(None)
    return offered[0] if offered is not None and offered[1] is keys else None
