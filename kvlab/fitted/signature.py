"""Signature of a model's weights, to check whether a fitted file belongs to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

SAMPLED = 4  # numbers per parameter
MOST_DIFFERENCE = 0.01  # relative; rounding to bfloat16 causes 0.002, any training far more


def signature(model: nn.Module) -> Tensor:
    """The first numbers of every parameter by name, (parameters, 4) float32, which any training changes."""
    named = sorted(named_weights(model), key=lambda pair: pair[0])
    rows = torch.zeros(len(named), SAMPLED)
    for row, (_, parameter) in zip(rows, named, strict=True):
        first = parameter.flatten()[:SAMPLED].float().cpu()
        row[: len(first)] = first
    return rows


def same_weights(fitted_to: Tensor, model: nn.Module) -> bool:
    """Whether `model` has the weights of that signature, up to rounding."""
    now = signature(model)
    return fitted_to.shape == now.shape and bool((fitted_to - now).norm() <= MOST_DIFFERENCE * fitted_to.norm())


def named_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, values) of every parameter, including those offloaded to disk or host."""
    for name, parameter in model.named_parameters():
        yield name, _at_rest(model, name) if parameter.is_meta else parameter.detach()


def _at_rest(model: nn.Module, name: str) -> torch.Tensor:
    """accelerate's stored copy of an offloaded parameter."""
    owner, _, own = name.rpartition(".")
    hook: Any = getattr(model.get_submodule(owner), "_hf_hook", None)
    parts = getattr(hook, "hooks", (hook,))
    kept = next(part.weights_map for part in parts if getattr(part, "weights_map", None) is not None)
    return kept[own]
