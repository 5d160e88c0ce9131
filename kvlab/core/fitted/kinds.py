"""Kinds of fitted file: feature maps of LESS, profiles of head shares, query statistics, networks of scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvlab.core.attention.alibi import uses_alibi
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import Kind, load_inside, name_of, same_weights, shipped_files, write_fitted
from kvlab.core.methods.allocators.profile import EVEN, HeadProfile, HeadShares
from kvlab.core.methods.eviction.lukv import HeadCurves
from kvlab.core.methods.merging.less import UNTRAINED, Absorb, FeatureMaps
from kvlab.core.methods.scorers.kvzap import UNTRAINED as UNTRAINED_HEADS
from kvlab.core.methods.scorers.kvzap import Networks, PredictedScore, ScoreHead, ScoreNetwork, SinkGate
from kvlab.core.methods.scorers.query_statistics import UNTRAINED as UNTRAINED_QUERIES
from kvlab.core.methods.scorers.query_statistics import QueryCentres, QueryFilter, QueryStatistics


def _maps(tensors: dict[str, Tensor], about: dict[str, str]) -> tuple[FeatureMaps, ...]:
    layers = range(len(tensors["key_bias"]))
    form = about["form"]
    maps = tuple(FeatureMaps(form, **{name: tensor[i] for name, tensor in tensors.items()}) for i in layers)  # type: ignore[arg-type]  # the fields of all forms are tensors
    # Raises if the shapes of a layer's tensors do not match.
    heads, group, head_dim = maps[0].query_in.shape[:3]
    phi = maps[0].of_queries(torch.zeros(1, heads, group, 1, head_dim))
    psi = maps[0].of_keys(torch.zeros(1, heads, 1, maps[0].key_in.shape[1]))
    _ = phi @ psi[:, :, None].transpose(-1, -2)
    return maps


MAPS = Kind("file of feature maps", "kvlab fit --method less", {"mini": "less/mini.safetensors"}, _maps)


@lru_cache(maxsize=4)
def _read_maps(path: Path, changed: int) -> tuple[tuple[FeatureMaps, ...], Tensor, dict[str, str]]:
    return MAPS.read(path)


def with_feature_maps(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the maps named by the pipeline's settler; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, another rank, other
    weights than the model's, and for any maps on a model with ALiBi.
    """
    settle = pipeline.settle
    if isinstance(settle, Absorb):
        refuse_unsupported(model)
    if not isinstance(settle, Absorb) or settle.weights == UNTRAINED:
        return pipeline
    path = MAPS.path(settle.weights)
    maps, fitted_to, _ = _read_maps(path, path.stat().st_mtime_ns if path.is_file() else 0)
    given = f"The feature maps {settle.weights!r}"
    MAPS.check_weights(fitted_to, model, name, given, "weights")
    if maps[0].rank != settle.rank:
        raise UserError(
            f"{given} have rank {maps[0].rank}, not {settle.rank}: "
            f"give rank={maps[0].rank}, or fit others with `kvlab fit --method less --set rank={settle.rank}`."
        )
    return replace(pipeline, settle=replace(settle, fitted=maps))


def refuse_unsupported(model: nn.Module) -> None:
    """Raise UserError for models with ALiBi or learned attention sinks, for which LESS has no place."""
    if uses_alibi(model):
        raise UserError("This model uses ALiBi, but the state of LESS has no positions: use another method.")
    if any(isinstance(getattr(module, "sinks", None), nn.Parameter) for module in model.modules()):
        raise UserError("This model has learned attention sinks, which LESS does not support: use another method.")


def write_maps(path: Path, maps: Sequence[FeatureMaps], model: nn.Module, about: dict[str, str]) -> None:
    """Write the maps of all compressed layers with the model's signature and metadata `about`."""
    stacked = {name: torch.stack([layer.tensors()[name] for layer in maps]).cpu() for name in maps[0].tensors()}
    write_fitted(path, stacked, model, about | {"form": maps[0].form})


def _shares(tensors: dict[str, Tensor], about: dict[str, str]) -> HeadShares:
    budgets = tensors["budgets"]
    shares = tensors["shares"]
    if shares.dim() != 3 or budgets.shape != shares.shape[:1] or not bool((shares >= 0).all()):
        raise ValueError
    if not bool((budgets.diff() > 0).all()):
        raise ValueError
    rows = tuple(tuple(tuple(heads) for heads in layers) for layers in shares.double().tolist())
    return HeadShares(tuple(budgets.double().tolist()), rows)


PROFILES = Kind("profile of head shares", "kvlab fit --method duoattention", shipped_files("profiles"), _shares)
CURVES = Kind("file of budget curves", "kvlab fit --method lukv", {"mini": "curves/mini.safetensors"}, _shares)


def with_profile(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the profile named by the pipeline's allocator; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one created with
    other weights than the model's.
    """
    allocate = pipeline.allocate
    if not isinstance(allocate, HeadProfile) or allocate.profile == EVEN:
        return pipeline
    kind = CURVES if isinstance(allocate, HeadCurves) else PROFILES
    known, made_with, _ = kind.read(kind.path(allocate.profile))
    if kind is CURVES:
        kind.check_weights(made_with, model, name, f"The budget curves {allocate.profile!r}", "curves", "even")
    elif not same_weights(made_with, model):
        name = name_of(model, name)
        remedy = f"run `kvlab fit --method duoattention --model {name} --out FILE` and set profile=FILE"
        if shipped := PROFILES.shipped_for(model):
            remedy = f"set profile={shipped}, which was"
        raise UserError(
            f"The profile {allocate.profile!r} was not created with these weights of {name}: {remedy} "
            "(profile=even: equal heads)."
        )
    return replace(pipeline, allocate=replace(allocate, known=known))


def write_profile(path: Path, budgets: list[float], shares: Tensor, model: nn.Module, about: dict[str, str]) -> None:
    """Write shares (budgets, L, H) with the model's signature and metadata `about`."""
    write_fitted(path, {"budgets": torch.tensor(budgets), "shares": shares.float().contiguous()}, model, about)


def _statistics(tensors: dict[str, Tensor], about: dict[str, str]) -> dict[int, QueryStatistics]:
    layers = sorted(int(name.removeprefix("mean.")) for name in tensors if name.startswith("mean."))
    found = {
        layer: QueryStatistics(*(tensors[f"{part}.{layer}"] for part in ("mean", "length", "direction")))
        for layer in layers
    }
    fits = all(
        one.mean.shape[0] == one.length.shape[0]
        and one.mean.shape[1] == one.direction.shape[1]
        and one.mean.shape[0] % one.direction.shape[0] == 0
        for one in found.values()
    )
    if not found or not fits:
        raise ValueError
    return found


QUERIES = Kind("file of query statistics", "kvlab fit --method triattention", shipped_files("queries"), _statistics)


def write_query_statistics(
    path: Path, known: Mapping[int, QueryStatistics], model: nn.Module, about: dict[str, str]
) -> None:
    """Write the statistics of each model layer with the model's signature and metadata `about`."""
    flat = {
        f"{part}.{layer}": tensor.float().cpu().contiguous()
        for layer, one in known.items()
        for part, tensor in vars(one).items()
    }
    write_fitted(path, flat, model, about)


LAYERS = "layers"


def _by_layer(tensors: dict[str, Tensor], network_type: type[ScoreHead] | type[SinkGate]) -> dict[int, ScoreNetwork]:
    """The networks; raises an error of Python or torch if their shapes do not fit together."""
    layers = tensors.pop(LAYERS).long().tolist()
    found = {
        layer: network_type(**{name: t[place].float() for name, t in tensors.items()})
        for place, layer in enumerate(layers)
    }
    for network in found.values():
        if isinstance(network, SinkGate):
            width = network.key.shape[-1]
        else:
            width = (network.weight if network.inner is None else network.inner).shape[-1]
        network.predict(torch.zeros(1, 1, width))
    return found


SCORE_HEADS = Kind(
    "file of KVzap's networks",
    "kvlab fit --method kvzap",
    shipped_files("kvzap"),
    lambda tensors, about: _by_layer(tensors, ScoreHead),
)
GATES = Kind(
    "file of Fast KVzip's gates",
    "kvlab fit --method fast-kvzip",
    {"mini": "fast-kvzip/mini.safetensors"},
    lambda tensors, about: _by_layer(tensors, SinkGate),
)
# (kind of file, its words in messages, the hyper-parameter that names it)
KINDS: Mapping[Networks, tuple[Kind[dict[int, ScoreNetwork]], str, str]] = {
    "kvzap": (SCORE_HEADS, "KVzap's networks", "heads"),
    "fast-kvzip": (GATES, "Fast KVzip's gates", "gates"),
}


def write_score_heads(path: Path, heads: Mapping[int, ScoreNetwork], model: nn.Module, about: dict[str, str]) -> None:
    """Write the network of each model layer, all of one class, with the model's signature and metadata `about`.

    Gates and the first maps of networks, which are nearly all of a file, are stored in float16.
    """
    ordered = [heads[layer] for layer in sorted(heads)]
    stacked = {name: torch.stack([head.tensors()[name] for head in ordered]).cpu() for name in ordered[0].tensors()}
    halved = stacked.keys() if isinstance(ordered[0], SinkGate) else {"inner"}
    stacked = {name: tensor.half() if name in halved else tensor for name, tensor in stacked.items()}
    write_fitted(path, stacked | {LAYERS: torch.tensor(sorted(heads))}, model, about)


def with_scores(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the statistics or networks named by the pipeline's scorer, also inside a wrapper; others unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one fitted to
    other weights than the model's.
    """

    def load(score: Any) -> Any:
        if isinstance(score, QueryCentres | QueryFilter) and score.queries != UNTRAINED_QUERIES:
            statistics, fitted_to, _ = QUERIES.read(QUERIES.path(score.queries))
            QUERIES.check_weights(fitted_to, model, name, f"The query statistics {score.queries!r}", "queries")
            return replace(score, known=statistics)
        if isinstance(score, PredictedScore) and score.heads != UNTRAINED_HEADS:
            kind, words, setting = KINDS[score.networks]
            networks, fitted_to, _ = kind.read(kind.path(score.heads))
            kind.check_weights(fitted_to, model, name, f"{words} {score.heads!r}", setting)
            return replace(score, known=networks)
        return score

    return replace(pipeline, score=load_inside(pipeline.score, load))
