"""Finding a model's rotary position embedding: its frequencies, how it pairs coordinates, which layers go without.

What is written down here by family is proved by tests/conformance/test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from kvlab.attention.alibi import uses_alibi
from kvlab.attention.text_config import family, text_config
from kvlab.common.errors import UserError
from kvlab.methods.core.plan import Plan
from kvlab.methods.core.rotary import Rotary

# Gemma 3 keeps one set of frequencies a layer type; only full-attention layers are compressed.
NAMES = ("inv_freq", "full_attention_inv_freq")
# Families that pair neighbouring coordinates.
INTERLEAVED = ("cohere", "cohere2", "glm", "glm4", "llama4_text", "ernie4_5")
# Families that rotate in sliding layers only, where they have any.
ROTATED_IF_SLIDING = ("cohere2", "exaone4")


def find_rotary(model: nn.Module) -> Rotary | None:
    """The rotary embedding of the model's full-attention layers, or None for a model that does not rotate."""
    found = None if uses_alibi(model) else _place(model)
    return None if found is None else _rotary(found, model)


def unrotated_layers(model: nn.Module) -> frozenset[int]:
    """Indices of the full-attention layers that do not rotate though the model does (SmolLM3, Llama 4, Cohere 2)."""
    config = text_config(model)
    if family(model) in ROTATED_IF_SLIDING:
        kinds = getattr(config, "layer_types", None) or []
        some = family(model) == "cohere2" or "sliding_attention" in kinds
        return frozenset(index for index, kind in enumerate(kinds) if some and kind == "full_attention")
    parts = [module for module in _decoder(model).modules() if hasattr(module, "layer_idx")]
    return frozenset(int(part.layer_idx) for part in parts if not getattr(part, "use_rope", True))  # type: ignore[arg-type]


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
    return lambda: _rotary(found, model)


class RotaryOfPasses:
    """The frequencies each pass's keys were rotated by, and whether one layer's keys still share them."""

    def __init__(self, rotary: Rotary | None, changing: Callable[[], Rotary] | None) -> None:
        self._rotary, self._changing = rotary, changing
        self._newest: Rotary | None = None
        self._mixed: Tensor | None = None  # () bool, on the device: asking would wait for it at every pass

    def now(self) -> Rotary | None:
        """Those of the pass that runs; to be asked once a pass."""
        if self._changing is None:
            return self._rotary
        now, before = self._changing(), self._newest
        if before is not None:
            differ = (now.inverse_frequencies != before.inverse_frequencies).any()
            self._mixed = differ if self._mixed is None else self._mixed | differ
        self._newest = now
        return now

    def check(self, plan: Plan) -> None:
        """Raises UserError where `plan` turns keys that were rotated by different frequencies."""
        if self._mixed is not None and plan.turns_keys() and bool(self._mixed):
            raise UserError(
                "This model changes its rotary frequencies as the text grows, and it just outgrew those of its older "
                "keys, which can no longer be turned: use space 'rotated', or positions 'original'."
            )


def _rotary(place: tuple[nn.Module, str], model: nn.Module) -> Rotary:
    """As it is now: dynamic kinds change the module's tensor in place."""
    module, name = place
    scaling = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
    return Rotary(getattr(module, name).float().clone(), family(model) in INTERLEAVED, float(scaling))


def _decoder(model: nn.Module) -> nn.Module:
    """The part that reads text: what looks at images may have frequencies of its own."""
    find = getattr(model, "get_decoder", None)
    return model if find is None else find()


def _place(model: nn.Module) -> tuple[nn.Module, str] | None:
    for module in _decoder(model).modules():
        for name in NAMES:
            if isinstance(getattr(module, name, None), Tensor):
                return module, name
    return None
