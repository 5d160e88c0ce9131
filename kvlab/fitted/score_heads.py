"""KVzap's networks as files of `kvlab fit --method kvzap`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvlab.fitted.files import Kind, with_scorer, write_fitted
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.learned.score_networks import ScoreHead
from kvlab.methods.scorers.lookahead.kvzap import UNTRAINED, PredictedScore

SHIPPED = {name: f"kvzap/{name}.safetensors" for name in ("mini", "mini-60", "mini-half")}
SCORE_HEADS = Kind("file of KVzap's networks", "kvlab fit --method kvzap", SHIPPED)
LAYERS = "layers"


def with_score_heads(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the networks named by the pipeline's scorer, also inside a wrapper; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one fitted to
    other weights than the model's.
    """

    def load(score: Any) -> Any:
        if not isinstance(score, PredictedScore) or score.heads == UNTRAINED:
            return score
        known, fitted_to, _ = read_score_heads(SCORE_HEADS.path(score.heads))
        SCORE_HEADS.check_weights(fitted_to, model, name, f"KVzap's networks {score.heads!r}", "heads")
        return replace(score, known=known)

    return with_scorer(pipeline, load)


def write_score_heads(path: Path, heads: Mapping[int, ScoreHead], model: nn.Module, about: dict[str, str]) -> None:
    """Write the network of each model layer with the model's signature and metadata `about`."""
    ordered = [heads[layer] for layer in sorted(heads)]
    stacked = {name: torch.stack([head.tensors()[name] for head in ordered]).cpu() for name in ordered[0].tensors()}
    write_fitted(path, stacked | {LAYERS: torch.tensor(sorted(heads))}, model, about)


def read_score_heads(path: Path) -> tuple[dict[int, ScoreHead], Tensor, dict[str, str]]:
    """(network by model layer, signature of the model they were fitted to, metadata).

    Raises UserError for a missing or invalid file.
    """
    return SCORE_HEADS.read(path, _heads)


def _heads(tensors: dict[str, Tensor], about: dict[str, str]) -> dict[int, ScoreHead]:
    layers = tensors.pop(LAYERS).long().tolist()
    found = {layer: ScoreHead(**{name: t[place] for name, t in tensors.items()}) for place, layer in enumerate(layers)}
    for head in found.values():
        head.predict(torch.zeros(1, 1, (head.weight if head.inner is None else head.inner).shape[1]))
    return found
