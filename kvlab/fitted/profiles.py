"""Profiles of head shares as files of `kvlab profile`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from kvlab.common.errors import UserError
from kvlab.fitted.files import Kind, name_of, write_fitted
from kvlab.fitted.signature import same_weights
from kvlab.methods.allocators.profile import EVEN, HeadProfile, HeadShares
from kvlab.methods.core.pipeline import Pipeline

SHIPPED = {name: f"profiles/{name}.safetensors" for name in ("mini", "mini-60", "mini-half")}
PROFILES = Kind("profile of head shares", "kvlab profile", SHIPPED)


def with_profile(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """The same pipeline, with the profile its allocator names read from its file; others are returned as they are.

    `name` is what the model was asked for by. Raises UserError for a file that is not there, is no profile, or was made
    with other weights than the model's.
    """
    allocate = pipeline.allocate
    if not isinstance(allocate, HeadProfile) or allocate.profile == EVEN:
        return pipeline
    known, made_with, _ = read_profile(PROFILES.path(allocate.profile))
    if not same_weights(made_with, model):
        name = name_of(model, name)
        raise UserError(
            f"The profile {allocate.profile!r} was not made with these weights of {name}: {_remedy(model, name)} "
            "(profile=even is equal heads)."
        )
    return replace(pipeline, allocate=replace(allocate, known=known))


def _remedy(model: nn.Module, name: str) -> str:
    """How to come by a profile of this model."""
    for shipped in PROFILES.shipped:
        if same_weights(read_profile(PROFILES.path(shipped))[1], model):
            return f"give profile={shipped}, which was"
    return f"run `kvlab profile --model {name} --out FILE` and give profile=FILE"


def write_profile(path: Path, budgets: list[float], shares: Tensor, model: nn.Module, about: dict[str, str]) -> None:
    """Write shares (budgets, L, H) with the model's signature, and what `about` says of how they were found."""
    write_fitted(path, {"budgets": torch.tensor(budgets), "shares": shares.float().contiguous()}, model, about)


def read_profile(path: Path) -> tuple[HeadShares, Tensor, dict[str, str]]:
    """(shares, signature of the model they are of, how they were found).

    Raises UserError for a file that is not there or holds no profile.
    """
    return PROFILES.read(path, _shares)


def _shares(tensors: dict[str, Tensor], about: dict[str, str]) -> HeadShares:
    budgets, shares = tensors["budgets"], tensors["shares"]
    if shares.dim() != 3 or budgets.shape != shares.shape[:1] or not bool((shares >= 0).all()):
        raise ValueError
    if not bool((budgets.diff() > 0).all()):
        raise ValueError
    rows = tuple(tuple(tuple(heads) for heads in layers) for layers in shares.double().tolist())
    return HeadShares(tuple(budgets.double().tolist()), rows)
