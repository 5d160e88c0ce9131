"""Feature maps on disk: a safetensors file of `kvlab train-less`, and whether it was fitted to the model at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kvlab.assets import asset_path
from kvlab.cache.find_rotary import uses_alibi
from kvlab.cache.named_weights import named_weights
from kvlab.errors import UserError
from kvlab.methods.feature_maps import FeatureMaps
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.settlers.absorb import UNTRAINED, Absorb

SHIPPED = {"mini": "less/mini.safetensors"}
SIGNATURE = "signature"
SAMPLED = 4  # numbers of each parameter that tell one model from another
MOST_DIFFERENCE = 0.01  # relative; rounding to bfloat16 makes 0.002, any training far more


def with_feature_maps(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """The same pipeline, with the maps its settler names read from their file; others are returned as they are.

    `name` is what the model was asked for by. Raises UserError for a file that is not there, not one of feature maps,
    of another rank, or fitted to other weights than the model's, and for any maps of a model with ALiBi.
    """
    settle = pipeline.settle
    if isinstance(settle, Absorb):
        refuse_alibi(model)
        refuse_sinks(model)
    if not isinstance(settle, Absorb) or settle.weights == UNTRAINED:
        return pipeline
    name = name or getattr(getattr(model, "config", None), "_name_or_path", "") or "MODEL"
    path = asset_path(SHIPPED[settle.weights]) if settle.weights in SHIPPED else Path(settle.weights)
    maps, fitted_to, _ = read_maps(path)
    if not same_weights(fitted_to, signature(model)):
        raise UserError(
            f"The feature maps {settle.weights!r} were not fitted to these weights of {name}: "
            f"run `kvlab train-less --model {name} --out FILE` and give weights=FILE (for timing, weights=untrained)."
        )
    if maps[0].rank != settle.rank:
        raise UserError(
            f"The feature maps {settle.weights!r} have rank {maps[0].rank}, not {settle.rank}: "
            f"give rank={maps[0].rank}, or fit others with `kvlab train-less --rank {settle.rank}`."
        )
    return replace(pipeline, settle=replace(settle, fitted=maps))


def refuse_alibi(model: nn.Module) -> None:
    """Raises UserError for a model on which LESS has no meaning."""
    if uses_alibi(model):
        raise UserError(
            "This model tells distances by ALiBi, and what LESS absorbs has no place in the text any more: use another "
            "method."
        )


def refuse_sinks(model: nn.Module) -> None:
    """Raises UserError for a model with learned attention sinks, which LESS's slot beside the others does not know."""
    if any(isinstance(getattr(module, "sinks", None), nn.Parameter) for module in model.modules()):
        raise UserError("This model has learned attention sinks, beside which LESS is not defined: use another method.")


def signature(model: nn.Module) -> Tensor:
    """(parameters, 4) float32: the first numbers of every parameter by name, which any further training changes."""
    named = sorted(named_weights(model), key=lambda pair: pair[0])
    rows = torch.zeros(len(named), SAMPLED)
    for row, (_, parameter) in zip(rows, named, strict=True):
        first = parameter.flatten()[:SAMPLED].float().cpu()
        row[: len(first)] = first
    return rows


def write_maps(path: Path, maps: Sequence[FeatureMaps], model: nn.Module, about: dict[str, str]) -> None:
    """Write the maps of every compressed layer, with the model's signature and what `about` says of the fitting."""
    stacked = {name: torch.stack([layer.tensors()[name] for layer in maps]).cpu() for name in maps[0].tensors()}
    save_file(stacked | {SIGNATURE: signature(model)}, path, about | {"form": maps[0].form})


def read_maps(path: Path) -> tuple[tuple[FeatureMaps, ...], Tensor, dict[str, str]]:
    """(maps of every compressed layer, signature of the model they were fitted to, what is said of the fitting).

    Raises UserError for a file that is not there or does not hold feature maps.
    """
    if not path.is_file():
        raise UserError(f"There is no file of feature maps {path}: make one with `kvlab train-less --out {path}`.")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> tuple[tuple[FeatureMaps, ...], Tensor, dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        fitted_to, form = tensors.pop(SIGNATURE), about["form"]
        layers = [FeatureMaps(form, **{n: t[i] for n, t in tensors.items()}) for i in range(len(tensors["key_bias"]))]  # type: ignore[arg-type]
        _try_out(layers[0])
    except (SafetensorError, KeyError, TypeError, IndexError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is not a file of feature maps: make one with `kvlab train-less`.") from error
    return tuple(layers), fitted_to, about


def _try_out(maps: FeatureMaps) -> Any:
    """Fails where the shapes of a layer's tensors do not fit each other."""
    heads, group, head_dim = maps.query_in.shape[:3]
    phi = maps.of_queries(torch.zeros(1, heads, group, 1, head_dim))
    psi = maps.of_keys(torch.zeros(1, heads, 1, maps.key_in.shape[1]))
    return phi @ psi[:, :, None].transpose(-1, -2)


def same_weights(fitted_to: Tensor, model: Tensor) -> bool:
    if fitted_to.shape != model.shape:
        return False
    return bool((fitted_to - model).norm() <= MOST_DIFFERENCE * fitted_to.norm())
