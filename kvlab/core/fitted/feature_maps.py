"""LESS's feature maps as files of `kvlab fit --method less`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvlab.core.attention.alibi import uses_alibi
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import Kind, write_fitted
from kvlab.core.methods.merging.less import UNTRAINED, Absorb, FeatureMaps

MAPS = Kind("file of feature maps", "kvlab fit --method less", {"mini": "less/mini.safetensors"})


def with_feature_maps(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the maps named by the pipeline's settler; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, another rank, other
    weights than the model's, and for any maps on a model with ALiBi.
    """
    settle = pipeline.settle
    if isinstance(settle, Absorb):
        refuse_alibi(model)
        refuse_sinks(model)
    if not isinstance(settle, Absorb) or settle.weights == UNTRAINED:
        return pipeline
    maps, fitted_to, _ = read_maps(MAPS.path(settle.weights))
    given = f"The feature maps {settle.weights!r}"
    MAPS.check_weights(fitted_to, model, name, given, "weights")
    if maps[0].rank != settle.rank:
        raise UserError(
            f"{given} have rank {maps[0].rank}, not {settle.rank}: "
            f"give rank={maps[0].rank}, or fit others with `kvlab fit --method less --set rank={settle.rank}`."
        )
    return replace(pipeline, settle=replace(settle, fitted=maps))


def refuse_alibi(model: nn.Module) -> None:
    """Raise UserError for models with ALiBi, on which LESS is not defined."""
    if uses_alibi(model):
        raise UserError("This model uses ALiBi, but the state of LESS has no positions: use another method.")


def refuse_sinks(model: nn.Module) -> None:
    """Raise UserError for models with learned attention sinks, which LESS does not support."""
    if any(isinstance(getattr(module, "sinks", None), nn.Parameter) for module in model.modules()):
        raise UserError("This model has learned attention sinks, which LESS does not support: use another method.")


def write_maps(path: Path, maps: Sequence[FeatureMaps], model: nn.Module, about: dict[str, str]) -> None:
    """Write the maps of all compressed layers with the model's signature and metadata `about`."""
    stacked = {name: torch.stack([layer.tensors()[name] for layer in maps]).cpu() for name in maps[0].tensors()}
    write_fitted(path, stacked, model, about | {"form": maps[0].form})


def read_maps(path: Path) -> tuple[tuple[FeatureMaps, ...], Tensor, dict[str, str]]:
    """(maps of all compressed layers, signature of the model they were fitted to, metadata).

    Raises UserError for a missing or invalid file.
    """
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> tuple[tuple[FeatureMaps, ...], Tensor, dict[str, str]]:
    return MAPS.read(path, _maps)


def _maps(tensors: dict[str, Tensor], about: dict[str, str]) -> tuple[FeatureMaps, ...]:
    layers = range(len(tensors["key_bias"]))
    form = about["form"]
    maps = tuple(FeatureMaps(form, **{name: tensor[i] for name, tensor in tensors.items()}) for i in layers)  # type: ignore[arg-type]  # the fields of all forms are tensors
    _try_out(maps[0])
    return maps


def _try_out(maps: FeatureMaps) -> Any:
    """Raises if the shapes of a layer's tensors do not match."""
    heads, group, head_dim = maps.query_in.shape[:3]
    phi = maps.of_queries(torch.zeros(1, heads, group, 1, head_dim))
    psi = maps.of_keys(torch.zeros(1, heads, 1, maps.key_in.shape[1]))
    return phi @ psi[:, :, None].transpose(-1, -2)
