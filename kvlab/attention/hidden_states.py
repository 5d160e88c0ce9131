"""Capture the hidden states attention modules receive, for scorers that compute their own queries."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

_given: ContextVar[tuple[nn.Module, Tensor] | None] = ContextVar("kvlab_hidden_states", default=None)
_WATCHED = "_kvlab_watches_hidden_states"


def watch_hidden_states(model: nn.Module) -> None:
    """Record the hidden states each attention module receives (idempotent)."""
    if getattr(model, _WATCHED, False):
        return
    for module in model.modules():
        if hasattr(module, "layer_idx") and any(hasattr(module, name) for name in PROJECTIONS):
            module.register_forward_pre_hook(_record, with_kwargs=True)
    setattr(model, _WATCHED, True)


def take_hidden_states(module: nn.Module) -> Tensor | None:
    """Hidden states (B, q, hidden) that `module` is processing, after the input norm; None if not recorded."""
    given = _given.get()
    _given.set(None)
    return given[1] if given is not None and given[0] is module else None


PROJECTIONS = ("q_proj", "qkv_proj", "query_key_value", "Wqkv")


def _record(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    states = named.get("hidden_states", positional[0] if positional else None)
    if isinstance(states, Tensor):
        _given.set((module, states))
