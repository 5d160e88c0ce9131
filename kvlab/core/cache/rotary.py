"""Find a model's rotary embedding: frequencies, how coordinates are paired, layers without rotation.

The family tables below are verified by tests/conformance/test_families.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from kvlab.core.attention.alibi import uses_alibi
from kvlab.core.attention.queries import family, text_config
from kvlab.core.contract import Plan, Rotary
from kvlab.core.errors import UserError

# Gemma 3 has one set of frequencies per layer type; only full-attention layers are compressed.
NAMES = ("inv_freq", "full_attention_inv_freq")
# Families that pair adjacent coordinates.
INTERLEAVED = ("cohere", "cohere2", "glm", "glm4", "llama4_text", "ernie4_5")
# Families that rotate in sliding-window layers only, if they have any.
ROTATED_IF_SLIDING = ("cohere2", "exaone4")


def find_rotary(model: nn.Module) -> Rotary | None:
    """Rotary embedding of the model's full-attention layers, or None for a model without one."""
    found = None if uses_alibi(model) else _place(model)
    return None if found is None else ChangingRotary(found, model)()


def unrotated_layers(model: nn.Module) -> frozenset[int]:
    """Indices of full-attention layers without rotation in a model that rotates (SmolLM3, Llama 4, Cohere 2)."""
    config = text_config(model)
    if family(model) in ROTATED_IF_SLIDING:
        kinds = getattr(config, "layer_types", None) or []
        some = family(model) == "cohere2" or "sliding_attention" in kinds
        return frozenset(index for index, kind in enumerate(kinds) if some and kind == "full_attention")
    decoder = getattr(model, "get_decoder", lambda: model)()
    parts = [module for module in decoder.modules() if hasattr(module, "layer_idx")]
    return frozenset(int(part.layer_idx) for part in parts if not getattr(part, "use_rope", True))  # type: ignore[arg-type]  # layer_idx is an integer, modules are typed as tensors


def changing_rotary(model: nn.Module) -> Callable[[], Rotary] | None:
    """Reader of the current pass's frequencies for models whose frequencies depend on the text length; else None.

    Dynamic NTK recomputes frequencies when a text is longer than any before; longrope (Phi-3) has a short and a long
    set. Both are fixed for all tokens of a pass before its first layer runs.
    """
    found = None if uses_alibi(model) else _place(model)
    if found is None:
        return None
    kinds = getattr(found[0], "rope_type", "default")
    kinds = kinds.values() if isinstance(kinds, dict) else (kinds,)
    if not any("dynamic" in str(kind) or kind == "longrope" for kind in kinds):
        return None
    return ChangingRotary(found, model)


@dataclass(frozen=True)
class ChangingRotary:
    """Reads the frequencies that a model computed for its current pass; copies of a cache read the same model."""

    place: tuple[nn.Module, str]
    model: nn.Module

    def __call__(self) -> Rotary:
        module, name = self.place
        scaling = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
        # A copy, because dynamic variants change the module's tensor in place.
        frequencies = getattr(module, name).float().clone()
        return Rotary(frequencies, family(self.model) in INTERLEAVED, float(scaling))

    def __deepcopy__(self, known: object) -> "ChangingRotary":
        return self

    def __reduce__(self) -> str:
        """Raise UserError: a file would hold the model."""
        raise UserError(
            "This model changes its rotary frequencies as the text grows, so its cache cannot be saved apart from it: "
            "keep the text with kvlab prefix (kvlab.Prefix in Python)."
        )


@dataclass(eq=False)
class RotaryOfPasses:
    """Frequencies of each pass's keys, and whether all keys of a layer share the same ones."""

    _rotary: Rotary | None
    _changing: Callable[[], Rotary] | None
    _newest: Rotary | None = None
    _mixed: Tensor | None = None  # () bool on the device, to avoid a synchronization per pass

    def now(self) -> Rotary | None:
        """Frequencies of the current pass; call once per pass."""
        if self._changing is None:
            return self._rotary
        now = self._changing()
        before = self._newest
        if before is not None:
            differ = (now.inverse_frequencies != before.inverse_frequencies).any()
            self._mixed = differ if self._mixed is None else self._mixed | differ
        self._newest = now
        return now

    def check(self, plan: Plan) -> None:
        """Raise UserError if `plan` re-rotates keys that were rotated by different frequencies."""
        turns = plan.new_keys is not None or (plan.edges is not None and plan.edges.turn is not None)
        if self._mixed is not None and turns and bool(self._mixed):
            raise UserError(
                "This model changes its rotary frequencies as the text grows, and the text just outgrew those of its "
                "older keys, which can no longer be re-rotated: use space 'rotated', or positions 'original'."
            )


def _place(model: nn.Module) -> tuple[nn.Module, str] | None:
    for module in getattr(model, "get_decoder", lambda: model)().modules():  # vision parts may have their own
        for name in NAMES:
            if isinstance(getattr(module, name, None), Tensor):
                return module, name
    return None
