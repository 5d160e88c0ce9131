"""The text part of a model's config."""

from __future__ import annotations

from typing import Any

from torch import nn


def text_config(model: nn.Module) -> Any:
    """The text decoder's config; None for a module without config."""
    config = getattr(model, "config", None)
    return None if config is None else config.get_text_config(decoder=True)


def family(model: nn.Module) -> str:
    """transformers' name of the model family; empty without config."""
    return getattr(text_config(model), "model_type", "")


# Set on models that reset their recurrent state at every pass of several tokens, so that no such pass may follow.
STARTS_ANEW = "_kvlab_guards_passes"
