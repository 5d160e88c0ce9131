"""Finding a model's rotary position embedding, and the frequencies it uses now where they change with length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kvlab.errors import UserError
from kvlab.methods.plan import Plan
from kvlab.methods.rotary import Rotary

# Gemma 3 keeps one set of frequencies a layer type; only full-attention layers are compressed.
NAMES = ("inv_freq", "full_attention_inv_freq")


def find_rotary(model: nn.Module) -> Rotary | None:
    """The rotary embedding of the model's full-attention layers, or None for a model that does not rotate."""
    found = None if uses_alibi(model) else _place(model)
    return None if found is None else Rotary(getattr(*found).float())


def changing_rotary(model: nn.Module) -> Callable[[], Rotary] | None:
    """Reads the frequencies of the pass that runs, for a model that has others for longer texts; else None.

    Dynamic NTK makes new frequencies whenever a text is longer than any before; longrope (Phi-3) has a short and a long
    set. Either is settled for all tokens of a pass before its first layer runs.
    """
    found = None if uses_alibi(model) else _place(model)
    if found is None:
        return None
    kinds = getattr(found[0], "rope_type", "default")
    kinds = kinds.values() if isinstance(kinds, dict) else (kinds,)
    if not any("dynamic" in str(kind) or kind == "longrope" for kind in kinds):
        return None
    return lambda: Rotary(getattr(*found).float().clone())


def uses_alibi(model: nn.Module) -> bool:
    """Whether the model tells distances by ALiBi; it may hold a rotary embedding that it never uses."""
    config = getattr(model, "config", None)
    return config is not None and bool(getattr(config.get_text_config(decoder=True), "alibi", False))


class RotaryOfPasses:
    """The frequencies each pass's keys were rotated by, and whether one layer's keys still share them."""

    def __init__(self, rotary: Rotary | None, changing: Callable[[], Rotary] | None) -> None:
        self._rotary, self._changing = rotary, changing
        self._newest: Rotary | None = None
        self._mixed = False

    def now(self) -> Rotary | None:
        """Those of the pass that runs; to be asked once a pass."""
        if self._changing is None:
            return self._rotary
        now, before = self._changing(), self._newest
        self._mixed |= before is not None and not torch.equal(now.inverse_frequencies, before.inverse_frequencies)
        self._newest = now
        return now

    def check(self, plan: Plan) -> None:
        """Raises UserError where `plan` turns keys that were rotated by different frequencies."""
        if self._mixed and plan.turns_keys():
            raise UserError(
                "This model changes its rotary frequencies as the text grows, and it just outgrew those of its older "
                "keys, which can no longer be turned: use space 'rotated', or positions 'original'."
            )


def _place(model: nn.Module) -> tuple[nn.Module, str] | None:
    for module in model.modules():
        for name in NAMES:
            if isinstance(getattr(module, name, None), Tensor):
                return module, name
    return None
