"""Answers and likelihoods with a single cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.evaluation.generate import Stops, generate_together
from kvlab.evaluation.results.outcome import Outcome
from kvlab.evaluation.scoring.likelihood import forced_together
from kvlab.models.load import LoadedModel


def generate_answers(
    loaded: LoadedModel,
    prompts: list[list[int]],
    cache: CompressedCache,
    in_sight: int,
    new: int,
    stop: str | None,
    *rest: Any,
) -> list[Outcome]:
    """One outcome per prompt; raises the method's error."""
    stops = Stops((stop,) if stop else ())
    (outcomes,) = generate_together(loaded, prompts, [cache], in_sight, new, stops, *rest)
    if isinstance(outcomes, Exception):
        raise outcomes
    return outcomes


def forced_log_probabilities(
    loaded: LoadedModel, prefix: list[int], continuation: list[int], cache: CompressedCache
) -> tuple[Tensor, Outcome]:
    """Log-probabilities (len(continuation) - 1, V) and the outcome; raises the method's error."""
    (found,) = forced_together(loaded, prefix, continuation, [cache])
    if isinstance(found, Exception):
        raise found
    return found[1], found[0]
