"""Query statistics as files of `kvlab fit --method triattention`, which `qfilter` reads too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.fitted.files import Kind, with_scorer, write_fitted
from kvlab.core.methods.learned.query_statistics import QueryStatistics
from kvlab.core.methods.scorers.query_statistics import UNTRAINED, QueryCentres, QueryFilter

SHIPPED = {name: f"queries/{name}.safetensors" for name in ("mini", "mini-60", "mini-half", "smollm2")}
QUERIES = Kind("file of query statistics", "kvlab fit --method triattention", SHIPPED)


def with_query_statistics(pipeline: Pipeline, model: nn.Module, name: str = "") -> Pipeline:
    """Load the statistics named by the pipeline's scorer, also inside a wrapper; other pipelines unchanged.

    `name` is the model's name for error messages. Raises UserError for a missing or invalid file, or one fitted to
    other weights than the model's.
    """

    def load(score: Any) -> Any:
        if not isinstance(score, QueryCentres | QueryFilter) or score.queries == UNTRAINED:
            return score
        known, fitted_to, _ = read_query_statistics(QUERIES.path(score.queries))
        QUERIES.check_weights(fitted_to, model, name, f"The query statistics {score.queries!r}", "queries")
        return replace(score, known=known)

    return with_scorer(pipeline, load)


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


def read_query_statistics(path: Path) -> tuple[dict[int, QueryStatistics], Tensor, dict[str, str]]:
    """(statistics by model layer, signature of the model they were fitted to, metadata).

    Raises UserError for a missing or invalid file.
    """
    return QUERIES.read(path, _statistics)


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
