"""Prefill saving: from layer to layer, only the tokens that a layer kept are worked on (PyramidInfer).

The hooks below narrow what a decoder layer is given to the rows the layer before kept, and put the last layer's output
back to the length of the pass. Everything else of the model stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvlab.common.errors import UserError

# Families whose decoder layers take hidden states, position embeddings and nothing else of the pass's length.
NARROWED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma")
_WATCHED = "_kvlab_narrows_prefill"


@dataclass(frozen=True)
class Rows:
    """Rows of a prompt's pass, n for each batch row, in order, at the right end where a batch row has fewer."""

    index: Tensor  # (B, n) among the rows of the pass
    among: Tensor  # (B, n) among the rows the layer before worked on
    valid: Tensor  # (B, n) bool: false where a batch row has fewer than n
    position: Tensor  # (B, n) positions of the tokens
    tokens: Tensor  # (B,) real tokens of the whole prompt
    length: int  # rows of the pass, padding counted

    @property
    def all_valid(self) -> bool:
        """Whether no row is padding; reads from the device."""
        return bool(self.valid.all())


class Passage:
    """Which rows of the prompt's pass the layer at work was given; None: all of them."""

    def __init__(self) -> None:
        self.current: Rows | None = None
        self._next: Rows | None = None

    def begin(self) -> None:
        """A prompt enters its first layer."""
        self.current = self._next = None

    def leave(self, keep: Tensor, position: Tensor) -> None:
        """The layer at work keeps `keep` (B, n) of its rows, which stand at `position` (B, n)."""
        count, now = keep.sum(-1), self.current
        among = keep.int().argsort(stable=True, dim=-1)[:, keep.shape[1] - int(count.max()) :]
        self._next = Rows(
            index=among if now is None else now.index.gather(1, among),
            among=among,
            valid=keep.gather(1, among),
            position=position.gather(1, among),
            tokens=position.masked_fill(~keep, -1).amax(-1).long() + 1,  # the newest token always stays
            length=keep.shape[1] if now is None else now.length,
        )

    def enter(self) -> Rows | None:
        """The next layer starts; the rows it is given, or None for all."""
        if self._next is not None:
            self.current, self._next = self._next, None
        return self.current

    def restore(self, states: Tensor) -> Tensor:
        """The last layer's output (B, n, hidden) at the length of the pass; NaN for rows that did not get there."""
        rows, self.current, self._next = self.current, None, None
        if rows is None:
            return states
        whole = states.new_full((states.shape[0], rows.length, states.shape[-1]), torch.nan)
        batch, place = rows.valid.nonzero(as_tuple=True)
        whole[batch, rows.index[batch, place]] = states[batch, place]
        return whole


def narrow_prefill(model: PreTrainedModel) -> None:
    """From now on layers are given what the layer before kept, if the cache asks for it (again does no harm).

    Raises UserError for a family whose layers kvlab cannot narrow, or layers that slide over a window of their own.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if config.model_type not in NARROWED or kinds != {"full_attention"} or (slides and config.model_type == "mistral"):
        raise UserError(
            f"prefill_saving cannot narrow this {config.model_type} model's layers; it works for {', '.join(NARROWED)} "
            "without sliding windows. Leave it off."
        )
    if getattr(model, _WATCHED, False):
        return
    layers = [module for module in model.modules() if hasattr(module, "self_attn") and hasattr(module, "mlp")]
    for layer in layers[1:]:
        layer.register_forward_pre_hook(_narrow, with_kwargs=True)
    layers[-1].register_forward_hook(_restore, with_kwargs=True)
    setattr(model, _WATCHED, True)


def _passage(named: dict[str, Any]) -> Passage | None:
    return getattr(getattr(named.get("past_key_values"), "settings", None), "passage", None)


def _narrow(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    passage = _passage(named)
    rows = None if passage is None else passage.enter()
    if rows is None:
        return None
    states, *rest = given or (named.pop("hidden_states"),)
    named["position_embeddings"] = tuple(_take(part, rows.index) for part in named["position_embeddings"])
    if named.get("position_ids") is not None:
        named["position_ids"] = _take(named["position_ids"], rows.index)
    return (_take(states, rows.among), *rest), named


def _restore(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor | None:
    passage = _passage(named)
    return None if passage is None else passage.restore(output)


def _take(states: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, n) of (B or 1, q) or (B or 1, q, d) states."""
    states = states.expand(index.shape[0], *states.shape[1:])
    return states.gather(1, index if states.dim() == 2 else index[..., None].expand(-1, -1, states.shape[-1]))
