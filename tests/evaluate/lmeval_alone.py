"""Scores for lm-eval with a single cache, and random texts to score."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlab.cache import CompressedCache
from kvlab.evaluate.results.outcome import Loaded
from kvlab.lmeval.likelihood import ContextGroup, Scored, score_decoded


def tokens(count: int, seed: int) -> tuple[int, ...]:
    """A text of random tokens after BOS."""
    generator = torch.Generator().manual_seed(seed)
    return (0, *torch.randint(2, 390, (count - 1,), generator=generator).tolist())


def scores_of(loaded: Loaded, groups: Sequence[ContextGroup], cache: CompressedCache, hold_back: int) -> list[Scored]:
    """Scores of the contexts' continuations; raises the method's error."""
    (found,) = score_decoded(loaded, groups, [cache], hold_back)
    if isinstance(found, Exception):
        raise found
    return found
