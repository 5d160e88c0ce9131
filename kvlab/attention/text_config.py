"""The part of a model's config that is about reading text."""

from __future__ import annotations

from typing import Any

from torch import nn


def text_config(model: nn.Module) -> Any:
    """The text decoder's config; None for a module that has none."""
    config = getattr(model, "config", None)
    return None if config is None else config.get_text_config(decoder=True)


def family(model: nn.Module) -> str:
    """transformers' name of the model's family; empty where there is no config."""
    return getattr(text_config(model), "model_type", "")


# It starts its recurrent state anew at every pass of several tokens, so that no such pass may follow another.
STARTS_ANEW = "_kvlab_guards_passes"
