"""Formulas of single decisions that both the settlers' plans and the in-place kernels compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOT_YET = -2.0  # a moving threshold before the first token was judged: below every cosine
NEVER_SEEN = -1e4  # stands for a log of 0 where arithmetic must stay finite


def stays(position: Tensor, tokens_seen: Tensor, recent: Tensor, sinks: Tensor | None) -> Tensor:
    """(B, H, S) bool: the `recent` (B, H) newest of the `tokens_seen` (B,), and the first `sinks` (B, H, 1)."""
    late = position >= (tokens_seen[:, None] - recent)[..., None]
    return late if sinks is None else late.logical_or_(position < sinks)


def judge_one(likeness: Tensor, old: Tensor, smoothing: float, begun: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(whether it merges, the new threshold, its weight) of one token a head by rule `paper`, each (B, H, 1).

    `begun`: every head has judged a token before.
    """
    threshold = old.lerp(likeness, smoothing)
    if not begun:
        threshold = torch.where(old == NOT_YET, likeness, threshold)
    share = (likeness - 1).sigmoid()  # exp(likeness) of exp(likeness) + e
    return likeness >= threshold - 1e-6, threshold, share


@dataclass(frozen=True)
class Joined:
    """What one source and its target become, and the source's `share` in key and value."""

    share: Tensor
    votes: Tensor
    log_mass: Tensor
    score: Tensor
    average: Tensor


def join_one(mass: Tensor, score: Tensor, votes: Tensor, lacking: Tensor, bias: bool, dim: int = -1) -> Joined:
    """Source and target side by side along `dim`, (B, H, 2); scores are predicted logits with log mass.

    `lacking` (B, H, 1) is what the target's average lacks for the queries it has not seen; `bias`: the rule of that
    name, else `votes`. The results are as `lacking` is.
    """
    whole = finite(score)
    of_source, of_target = whole.chunk(2, dim)
    share, total = (of_source - of_target).sigmoid(), torch.logaddexp(of_source, of_target)
    together = torch.add(*votes.chunk(2, dim))
    if bias:
        bare_source, bare_target = (whole - mass).chunk(2, dim)
        mean = bare_target.lerp(bare_source, share)
        return Joined(share, together, total - mean, total, lacking + mean)
    log_mass = together.log()
    return Joined(share, together, log_mass, total, lacking + (total - log_mass))


def finite(logit: Tensor) -> Tensor:
    """The logit with `NEVER_SEEN` for minus infinity and for no number."""
    return torch.nan_to_num(logit, nan=NEVER_SEEN, neginf=NEVER_SEEN)
