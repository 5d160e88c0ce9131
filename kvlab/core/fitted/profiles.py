"""Profiles of head shares and LU-KV's curves, as files of `kvlab fit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import Kind, name_of, same_weights, write_fitted
from kvlab.core.methods.allocators.profile import EVEN, HeadProfile, HeadShares
from kvlab.core.methods.eviction.lukv import HeadCurves

SHIPPED = {name: f"profiles/{name}.safetensors" for name in ("mini", "mini-60", "mini-half", "smollm2")}
PROFILES = Kind("profile of head shares", "kvlab fit --method duoattention", SHIPPED)
CURVES = Kind("file of budget curves", "kvlab fit --method lukv", {"mini": "curves/mini.safetensors"})


def with_profile(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the profile named by the pipeline's allocator; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one created with
    other weights than the model's.
    """
    allocate = pipeline.allocate
    if not isinstance(allocate, HeadProfile) or allocate.profile == EVEN:
        return pipeline
    kind = CURVES if isinstance(allocate, HeadCurves) else PROFILES
    known, made_with, _ = read_profile(kind.path(allocate.profile), kind)
    if kind is CURVES:
        kind.check_weights(made_with, model, name, f"The budget curves {allocate.profile!r}", "curves", "even")
    elif not same_weights(made_with, model):
        name = name_of(model, name)
        raise UserError(
            f"The profile {allocate.profile!r} was not created with these weights of {name}: {_remedy(model, name)} "
            "(profile=even: equal heads)."
        )
    return replace(pipeline, allocate=replace(allocate, known=known))


def _remedy(model: nn.Module, name: str) -> str:
    """How to get a profile of this model."""
    if shipped := PROFILES.shipped_for(model):
        return f"set profile={shipped}, which was"
    return f"run `kvlab fit --method duoattention --model {name} --out FILE` and set profile=FILE"


def write_profile(path: Path, budgets: list[float], shares: Tensor, model: nn.Module, about: dict[str, str]) -> None:
    """Write shares (budgets, L, H) with the model's signature and metadata `about`."""
    write_fitted(path, {"budgets": torch.tensor(budgets), "shares": shares.float().contiguous()}, model, about)


def read_profile(path: Path, kind: Kind = PROFILES) -> tuple[HeadShares, Tensor, dict[str, str]]:
    """(shares, signature of their model, metadata).

    Raises UserError for a missing or invalid file.
    """
    return kind.read(path, _shares)


def _shares(tensors: dict[str, Tensor], about: dict[str, str]) -> HeadShares:
    budgets = tensors["budgets"]
    shares = tensors["shares"]
    if shares.dim() != 3 or budgets.shape != shares.shape[:1] or not bool((shares >= 0).all()):
        raise ValueError
    if not bool((budgets.diff() > 0).all()):
        raise ValueError
    rows = tuple(tuple(tuple(heads) for heads in layers) for layers in shares.double().tolist())
    return HeadShares(tuple(budgets.double().tolist()), rows)
