"""KVzap's networks and Fast KVzip's gates as files of `kvlab fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.fitted.files import Kind, with_scorer, write_fitted
from kvlab.core.methods.learned.score_networks import ScoreHead, ScoreNetwork, SinkGate
from kvlab.core.methods.scorers.kvzap import UNTRAINED, Networks, PredictedScore

SHIPPED = {name: f"kvzap/{name}.safetensors" for name in ("mini", "mini-60", "mini-half", "smollm2")}
SCORE_HEADS = Kind("file of KVzap's networks", "kvlab fit --method kvzap", SHIPPED)
GATES = Kind("file of Fast KVzip's gates", "kvlab fit --method fast-kvzip", {"mini": "fast-kvzip/mini.safetensors"})
LAYERS = "layers"
# (kind of file, its words in messages, the hyper-parameter that names it, class of a network)
KINDS: Mapping[Networks, tuple[Kind, str, str, type[ScoreHead] | type[SinkGate]]] = {
    "kvzap": (SCORE_HEADS, "KVzap's networks", "heads", ScoreHead),
    "fast-kvzip": (GATES, "Fast KVzip's gates", "gates", SinkGate),
}


def with_score_heads(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the networks named by the pipeline's scorer, also inside a wrapper; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one fitted to
    other weights than the model's.
    """

    def load(score: Any) -> Any:
        if not isinstance(score, PredictedScore) or score.heads == UNTRAINED:
            return score
        kind, words, setting, _ = KINDS[score.networks]
        known, fitted_to, _ = read_score_heads(kind.path(score.heads), score.networks)
        kind.check_weights(fitted_to, model, name, f"{words} {score.heads!r}", setting)
        return replace(score, known=known)

    return with_scorer(pipeline, load)


def write_score_heads(path: Path, heads: Mapping[int, ScoreNetwork], model: nn.Module, about: dict[str, str]) -> None:
    """Write the network of each model layer, all of one class, with the model's signature and metadata `about`.

    Gates and the first maps of networks, which are nearly all of a file, are stored in float16.
    """
    ordered = [heads[layer] for layer in sorted(heads)]
    stacked = {name: torch.stack([head.tensors()[name] for head in ordered]).cpu() for name in ordered[0].tensors()}
    halved = stacked.keys() if isinstance(ordered[0], SinkGate) else {"inner"}
    stacked = {name: tensor.half() if name in halved else tensor for name, tensor in stacked.items()}
    write_fitted(path, stacked | {LAYERS: torch.tensor(sorted(heads))}, model, about)


def read_score_heads(
    path: Path, networks: Networks = "kvzap"
) -> tuple[dict[int, ScoreNetwork], Tensor, dict[str, str]]:
    """(network by model layer, signature of the model they were fitted to, metadata).

    Raises UserError for a missing or invalid file.
    """
    kind, _, _, of = KINDS[networks]
    return kind.read(path, lambda tensors, about: _by_layer(tensors, of))


def _by_layer(tensors: dict[str, Tensor], of: type[ScoreHead] | type[SinkGate]) -> dict[int, ScoreNetwork]:
    """The networks; raises an error of Python or torch if their shapes do not fit together."""
    layers = tensors.pop(LAYERS).long().tolist()
    found = {layer: of(**{name: t[place].float() for name, t in tensors.items()}) for place, layer in enumerate(layers)}
    for network in found.values():
        network.predict(torch.zeros(1, 1, network.width))
    return found
