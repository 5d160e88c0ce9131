"""Prefill saving (PyramidInfer): each layer processes only the tokens that the previous layer kept.

Hooks narrow the input of each decoder layer to the rows kept by the layer before, and expand the last layer's output to
the length of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvlab.core.attention.cache_argument import find_cache
from kvlab.core.errors import UserError

# Families whose decoder layers take no length-dependent input besides hidden states and position embeddings.
SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma")
_WATCHED = "_kvlab_narrows_prefill"


@dataclass(frozen=True)
class Rows:
    """Rows of a prompt's pass, n for each batch row, in order, at the right end where a batch row has fewer."""

    index: Tensor  # (B, n) indices into the rows of the pass
    among: Tensor  # (B, n) indices into the rows of the previous layer
    valid: Tensor  # (B, n) bool: false for padding
    position: Tensor  # (B, n) token positions
    tokens: Tensor  # (B,) real tokens in the whole prompt
    length: int  # rows of the pass, padding included


class TokenPruning:
    """Rows of the prompt's pass that the current layer receives; None: all of them."""

    def __init__(self) -> None:
        self.current: Rows | None = None
        self._next: Rows | None = None

    def begin(self) -> None:
        """Start a prompt at its first layer."""
        self.current = self._next = None

    def leave(self, keep: Tensor, position: Tensor) -> None:
        """Record that the current layer keeps `keep` (B, n) of its rows, at positions `position` (B, n)."""
        count = keep.sum(-1)
        now = self.current
        among = keep.int().argsort(stable=True, dim=-1)[:, keep.shape[1] - int(count.max()) :]
        self._next = Rows(
            index=among if now is None else now.index.gather(1, among),
            among=among,
            valid=keep.gather(1, among),
            position=position.gather(1, among),
            tokens=position.masked_fill(~keep, -1).amax(-1).long() + 1,  # the newest token is always kept
            length=keep.shape[1] if now is None else now.length,
        )

    def enter(self) -> Rows | None:
        """Start the next layer; returns its rows, or None for all."""
        if self._next is not None:
            self.current = self._next
            self._next = None
        return self.current

    def restore(self, states: Tensor) -> Tensor:
        """Expand the last layer's output (B, n, hidden) to the length of the pass; NaN for pruned rows."""
        rows = self.current
        self.current = None
        self._next = None
        if rows is None:
            return states
        whole = states.new_full((states.shape[0], rows.length, states.shape[-1]), torch.nan)
        batch, place = rows.valid.nonzero(as_tuple=True)
        whole[batch, rows.index[batch, place]] = states[batch, place]
        return whole


def install_token_pruning(model: PreTrainedModel) -> None:
    """Install the hooks that narrow each layer's input to the rows kept by the layer before (idempotent).

    Raises UserError for an unsupported family or for sliding-window layers.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if (
        config.model_type not in SUPPORTED_FAMILIES
        or kinds != {"full_attention"}
        or (slides and config.model_type == "mistral")
    ):
        raise UserError(
            f"prefill_saving does not support this {config.model_type} model; it supports "
            f"{', '.join(SUPPORTED_FAMILIES)} without sliding windows. Turn it off."
        )
    if getattr(model, _WATCHED, False):
        return
    layers = [module for module in model.modules() if hasattr(module, "self_attn") and hasattr(module, "mlp")]
    for layer in layers[1:]:
        layer.register_forward_pre_hook(_narrow, with_kwargs=True)
    layers[-1].register_forward_hook(_restore, with_kwargs=True)
    setattr(model, _WATCHED, True)


def _pruning_of(given: tuple[Any, ...], named: dict[str, Any]) -> TokenPruning | None:
    return getattr(getattr(find_cache(given, named), "settings", None), "token_pruning", None)


def _narrow(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    token_pruning = _pruning_of(given, named)
    rows = None if token_pruning is None else token_pruning.enter()
    if rows is None:
        return None
    states, *rest = given or (named.pop("hidden_states"),)
    named["position_embeddings"] = tuple(_take(part, rows.index) for part in named["position_embeddings"])
    if named.get("position_ids") is not None:
        named["position_ids"] = _take(named["position_ids"], rows.index)
    return (_take(states, rows.among), *rest), named


def _restore(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor | None:
    token_pruning = _pruning_of(given, named)
    return None if token_pruning is None else token_pruning.restore(output)


def _take(states: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, n) of states (B or 1, q) or (B or 1, q, d)."""
    states = states.expand(index.shape[0], *states.shape[1:])
    return states.gather(1, index if states.dim() == 2 else index[..., None].expand(-1, -1, states.shape[-1]))
