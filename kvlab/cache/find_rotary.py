"""Finding a model's rotary position embedding, and the frequencies it uses now where they change with length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kvlab.methods.rotary import Rotary

# Gemma 3 keeps one set of frequencies a layer type; only full-attention layers are compressed.
NAMES = ("inv_freq", "full_attention_inv_freq")


def find_rotary(model: nn.Module) -> Rotary | None:
    """The rotary embedding of the model's full-attention layers, or None for a model that does not rotate."""
    found = _place(model)
    return None if found is None else Rotary(getattr(*found).float())


def changing_rotary(model: nn.Module) -> Callable[[], Rotary] | None:
    """Reads the frequencies of the pass that runs, for a model that has others for longer texts; else None.

    Dynamic NTK makes new frequencies whenever a text is longer than any before; longrope (Phi-3) has a short and a long
    set. Either is settled for all tokens of a pass before its first layer runs.
    """
    found = _place(model)
    if found is None:
        return None
    kinds = getattr(found[0], "rope_type", "default")
    kinds = kinds.values() if isinstance(kinds, dict) else (kinds,)
    if not any("dynamic" in str(kind) or kind == "longrope" for kind in kinds):
        return None
    return lambda: Rotary(getattr(*found).float().clone())


def same_frequencies(one: Rotary, other: Rotary) -> bool:
    """Whether keys rotated by the one can be turned together with keys rotated by the other."""
    return torch.equal(one.inverse_frequencies, other.inverse_frequencies)


def _place(model: nn.Module) -> tuple[nn.Module, str] | None:
    for module in model.modules():
        for name in NAMES:
            if isinstance(getattr(module, name, None), Tensor):
                return module, name
    return None
