"""Profiles of head shares on disk: a safetensors file of `kvlab profile`, and whether it was made with this model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kvlab.assets import asset_path
from kvlab.cache.feature_weights import SIGNATURE, same_weights, signature
from kvlab.errors import UserError
from kvlab.methods.allocators.profile import EVEN, HeadProfile, HeadShares
from kvlab.methods.pipeline import Pipeline

SHIPPED = {"mini": "profiles/mini.safetensors"}


def with_profile(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """The same pipeline, with the profile its allocator names read from its file; others are returned as they are.

    `name` is what the model was asked for by. Raises UserError for a file that is not there, is no profile, or was made
    with other weights than the model's.
    """
    allocate = pipeline.allocate
    if not isinstance(allocate, HeadProfile) or allocate.profile == EVEN:
        return pipeline
    name = name or getattr(getattr(model, "config", None), "_name_or_path", "") or "MODEL"
    path = asset_path(SHIPPED[allocate.profile]) if allocate.profile in SHIPPED else Path(allocate.profile)
    known, made_with, _ = read_profile(path)
    if not same_weights(made_with, signature(model)):
        raise UserError(
            f"The profile {allocate.profile!r} was not made with these weights of {name}: run "
            f"`kvlab profile --model {name} --out FILE` and give profile=FILE (profile=even is equal heads)."
        )
    return replace(pipeline, allocate=replace(allocate, known=known))


def write_profile(path: Path, budgets: list[float], shares: Tensor, model: nn.Module, about: dict[str, str]) -> None:
    """Write shares (budgets, L, H) with the model's signature, and what `about` says of how they were found."""
    tensors = {"budgets": torch.tensor(budgets), "shares": shares.float().contiguous(), SIGNATURE: signature(model)}
    save_file(tensors, path, about)


def read_profile(path: Path) -> tuple[HeadShares, Tensor, dict[str, str]]:
    """(shares, signature of the model they are of, how they were found).

    Raises UserError for a file that is not there or holds no profile.
    """
    if not path.is_file():
        raise UserError(f"There is no profile {path}: make one with `kvlab profile --out {path}`.")
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            budgets, shares, made_with = (file.get_tensor(name) for name in ("budgets", "shares", SIGNATURE))
        if shares.dim() != 3 or budgets.shape != shares.shape[:1] or not bool((shares >= 0).all()):
            raise ValueError
        if not bool((budgets.diff() > 0).all()):
            raise ValueError
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a profile of head shares: make one with `kvlab profile`.") from error
    rows = tuple(tuple(tuple(heads) for heads in layers) for layers in shares.double().tolist())
    return HeadShares(tuple(budgets.double().tolist()), rows), made_with, about
