"""The values of a model's weights, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def named_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, values) of every parameter, also of those that lie on the disk or the host between their turns."""
    for name, parameter in model.named_parameters():
        yield name, _at_rest(model, name) if parameter.is_meta else parameter.detach()


def _at_rest(model: nn.Module, name: str) -> torch.Tensor:
    """What accelerate keeps of a parameter that it brings to its device only while its module works."""
    owner, _, own = name.rpartition(".")
    hook: Any = getattr(model.get_submodule(owner), "_hf_hook", None)
    parts = getattr(hook, "hooks", (hook,))
    kept = next(part.weights_map for part in parts if getattr(part, "weights_map", None) is not None)
    return kept[own]
